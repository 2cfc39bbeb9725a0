"""Accelerate, as installed, with a guard on what it prepared; and doing without the libraries."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from recorded import another_scaler, by_hand, close, example, rows

from sdc_guard import Guard, load_checkpoint
from sdc_guard.errors import UsageError

MICRO_BATCHES = 8


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))


def net_loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = (value.to(next(model.parameters()).dtype) for value in batch)
    return torch.nn.functional.mse_loss(model(x), y)


def data() -> list[list[torch.Tensor]]:
    """Micro-batches of two samples."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn((MICRO_BATCHES, 2, 6), generator=generator)
    return [list(batch.split([5, 1], 1)) for batch in drawn]


class Training:
    """A script's loop over two micro-batches a step, with clipping."""

    def __init__(self, batches: list[list[torch.Tensor]]) -> None:
        from accelerate import Accelerator  # takes seconds to import

        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.loader = torch.utils.data.DataLoader(batches, batch_size=None)
        self.before: list[dict[str, torch.Tensor]] = []

    def prepare(self) -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def run(self, guard: Guard | None = None) -> None:
        for number, batch in enumerate(self.loader):
            if number % 2 == 0:
                self.before.append(copy.deepcopy(self.model.state_dict()))
            with self.accelerator.accumulate(self.model):
                loss = net_loss(self.model, batch)
                self.accelerator.backward(loss)
                if guard is not None:
                    guard.observe(loss, batch)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1e-6)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def bits(self) -> list[bytes]:
        moments = self.optimizer.state_dict()["state"].values()
        tensors = [*self.model.state_dict().values()]
        tensors += [value for of_one in moments for value in of_one.values()]
        return [tensor.numpy().tobytes() for tensor in tensors]


def guard_for(training: Training, **options: Any) -> Guard:
    from sdc_guard.integrations import accelerate

    return accelerate.guard_for(training.accelerator, training.model, training.optimizer, **options)


def paired(batches: list[Any]) -> list[list[Any]]:
    return [batches[start : start + 2] for start in range(0, len(batches), 2)]


def test_setups_accelerate_values_are_those_of_plain_torch_and_bits_stay(tmp_path: Path) -> None:
    training, bare = Training(data()), Training(data())
    training.prepare()
    options = {"run": tmp_path, "first_step": 1, "policy": "record"}
    guard = guard_for(training, **options)
    training.run(guard)
    guard.close()
    expected = by_hand(net(), training.before, paired(data()), net_loss)
    assert rows(tmp_path, "loss, grad_norm") == close(expected)
    assert rows(tmp_path, "step, accumulation") == [(step, 2) for step in (1, 2, 3, 4)]
    assert guard.health.errors == 0
    bare.prepare()
    bare.run()
    assert training.bits() == bare.bits()
    assert len(bare.bits()) == 4 + 4 * 3  # parameters, step and moments of each


def test_setups_accelerate_with_a_scaler(tmp_path: Path) -> None:
    batches = data()
    batches[1][1] *= 1e12  # overflows in step 0 when it is scaled
    training = Training(batches)
    # Accelerate makes no scaler on a CPU, but takes one that is there when it prepares
    training.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    other = another_scaler()
    training.prepare()
    options = {"run": tmp_path, "policy": "record"}
    with guard_for(training, **options) as guard:
        training.run(guard)
    assert (training.accelerator.scaler.get_scale(), other.get_scale()) == (2.0**99, 2.0**16)
    assert rows(tmp_path, "step, skipped") == [(0, True), (1, False), (2, False), (3, False)]
    expected = by_hand(net(), training.before, paired(batches), net_loss)
    recorded = rows(tmp_path, "loss, grad_norm")
    del recorded[0], expected[0]
    assert recorded == close(expected)


def test_setups_accelerate_checkpoint_of_what_it_prepared_is_clean(tmp_path: Path) -> None:
    training = Training(data())
    training.prepare()
    guard = guard_for(training, run=tmp_path)
    training.run(guard)
    folder = guard.checkpoint({"model": training.model, "optimizer": training.optimizer}, 3)
    guard.close()
    assert rows(tmp_path, "step, status, reason", "checkpoints") == [(3, "clean", "")]
    assert folder is not None
    saved = load_checkpoint(folder)["model"]
    live = training.model.state_dict()
    assert {name: value.tolist() for name, value in saved.items()} == {
        name: value.tolist() for name, value in live.items()
    }


def test_setups_accelerate_refuses_what_is_no_torch_optimizer(tmp_path: Path) -> None:
    training = Training(data())
    training.model, training.optimizer = net(), object()
    with pytest.raises(UsageError, match=r"builtins\.object is not a torch\.optim\.Optimizer"):
        guard_for(training, run=tmp_path)


def test_setups_accelerate_example_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    names: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": torch.utils.data.DataLoader(data(), batch_size=None),
        "loss_fn": net_loss,
    }
    exec(example("Accelerate"), names)
    run = tmp_path / "runs" / "pretrain"
    assert rows(run, "step, accumulation") == [(step, 2) for step in (1, 2, 3, 4)]
    assert {path.name for path in (tmp_path / "runs" / "pretrain-state").iterdir()} == {
        "step=2", "step=2.sdc-seal.json", "step=4", "step=4.sdc-seal.json",
    }  # fmt: skip
    assert all(math.isfinite(loss) for (loss,) in rows(run, "loss"))


def test_setups_without_the_libraries_say_in_one_line_what_to_install() -> None:
    code = """
import sys
libraries = ["transformers", "lightning", "pytorch_lightning", "accelerate"]
from sdc_guard import Guard
print(sorted(set(libraries) & set(sys.modules)))
sys.modules.update(dict.fromkeys(libraries))
for name in ["huggingface", "lightning", "pytorch_lightning", "accelerate"]:
    try:
        __import__(f"sdc_guard.integrations.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded, *told = done.stdout.splitlines()
    assert loaded == "[]"
    wanted = ["[huggingface]", "[lightning]", "install pytorch-lightning", "[accelerate]"]
    assert len(told) == 4
    assert all(part in line for part, line in zip(wanted, told, strict=True))
