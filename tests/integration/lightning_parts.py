"""Small modules, data and Trainers for the tests with Lightning.

Imported when the first of those tests runs: the library takes seconds to import.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from recorded import gradient_norm

from sdc_guard.integrations.lightning import SdcGuardCallback

# for the tests, besides what is below
__all__ = ["Callback", "MixedPrecision", "ModelCheckpoint", "SdcGuardCallback"]

STEPS = 4


class Net(torch.nn.Module):
    """A small regression, its weights always the same."""

    def __init__(self, width: int = 7, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, width),
            torch.nn.Tanh(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def net_loss(net: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """The mean squared error, in the precision of the net."""
    x, y = (value.to(next(net.parameters()).dtype) for value in batch)
    return torch.nn.functional.mse_loss(net(x), y)


def line_of(base: Any) -> Any:
    """The LightningModule of this test, of either package."""

    class Line(base):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            self.net = Net(dropout=dropout)
            self.before: list[dict[str, torch.Tensor]] = []
            self.fails_at = -1

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if self.global_step == len(self.before):  # the first micro-batch of a step
                self.before.append(copy.deepcopy(self.net.state_dict()))
            if self.global_step == self.fails_at:
                raise RuntimeError("out of patience")
            return net_loss(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    return Line


Line = line_of(pl.LightningModule)


class Duel(pl.LightningModule):
    """Two nets and two optimizers, stepped by manual optimization; the second every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = Net(7), Net(3)
        self.before: list[list[dict[str, torch.Tensor]]] = [[], []]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for number, net in enumerate([self.first, self.second]):
            optimizer = self.optimizers()[number]
            if number and batch_idx % 2:
                continue
            self.before[number].append(copy.deepcopy(net.state_dict()))
            optimizer.zero_grad()
            self.manual_backward(net_loss(net, batch))
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in (self.first, self.second)]


def data(batches: int) -> list[list[torch.Tensor]]:
    """Batches of two samples."""
    generator = torch.Generator().manual_seed(1)
    return [list(torch.randn((2, 6), generator=generator).split([5, 1], 1)) for _ in range(batches)]


def loader(batches: list[list[torch.Tensor]]) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(batches, batch_size=None)


def trainer_of(folder: Path, *callbacks: Any, package: Any = pl, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_steps": STEPS, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return package.Trainer(
        default_root_dir=folder, callbacks=list(callbacks), **{**defaults, **options}
    )


def in_float16(
    weights: dict[str, torch.Tensor], batch: list[torch.Tensor], scale: float
) -> tuple[float, float]:
    """Loss and gradient norm by plain torch, without the scale."""
    net = Net()
    net.load_state_dict(weights)
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        loss = net_loss(net, batch)
    (loss * scale).backward()
    return loss.item(), gradient_norm(net.parameters()) / scale
