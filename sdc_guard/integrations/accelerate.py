"""A guard for what `Accelerator.prepare` returned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..guard import Guard
from .replaced import Replaced

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError(
        'Accelerate is not installed: pip install ".[accelerate]" in a clone of SDC Guard'
    ) from error


def guard_for(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: str | Path,
    seal_checkpoints: bool = True,
    **options: Any,
) -> Guard:
    """Make a guard for a prepared model and optimizer.

    Steps are numbered as by any guard: from `first_step`, which is 0 unless given. A step is one
    that really runs: under `accelerator.accumulate` the micro-batches before it belong to it, and
    `guard.observe` is called for each of them, with the loss as the model gave it.

    Args:
        accelerator: the one that prepared them; its gradient scaler is handed to the guard.
        model: as returned by `accelerator.prepare`, or the bare model.
        optimizer: likewise.
        run: the run's folder.
        seal_checkpoints: whether the folders of `accelerator.save_state` are sealed when they are
            written, by rank 0, until the guard is closed; see Guard.seal.
        options: further arguments of Guard.

    Raises:
        UsageError: the optimizer is none of torch, DeepSpeed's for example.
    """
    scaler = {} if accelerator.scaler is None else {"scaler": accelerator.scaler}
    bare = accelerator.unwrap_model(model, keep_torch_compile=False)
    guard = Guard(bare, unwrapped_optimizer(optimizer), run=run, **{**scaler, **options})
    if seal_checkpoints:
        _Sealing.of(accelerator).guard = guard
    return guard


class _Sealing:
    """Seals what an accelerator saves; one for each, with the newest of its guards.

    Attributes:
        guard: that seals.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.guard: Guard | None = None
        self._replaced = Replaced(accelerator, "save_state", self._save_state)

    @classmethod
    def of(cls, accelerator: Accelerator) -> _Sealing:
        """That of an accelerator, made if there is none."""
        around = getattr(vars(accelerator).get("save_state"), "func", None)
        known = getattr(around, "__self__", None)
        return known if isinstance(known, cls) else cls(accelerator)

    def _save_state(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        folder = inner(*args, **kwargs)
        if self.guard is not None and isinstance(folder, str | os.PathLike):
            self.guard.seal(os.fspath(folder), self.guard.step - 1)
        return folder


def unwrapped_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside Accelerate's wrapper, whose own steps call no hooks.

    Raises:
        UsageError: it is none of torch.
    """
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer)
        raise UsageError(
            f"{kind.__module__}.{kind.__qualname__} is not a torch.optim.Optimizer",
            next_step="a guard follows the steps of torch's optimizers and their subclasses",
        )
    return optimizer
