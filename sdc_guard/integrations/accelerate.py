"""A guard for what `Accelerator.prepare` returned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..guard import Guard

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
        options: further arguments of Guard.

    Raises:
        UsageError: the optimizer is none of torch, DeepSpeed's for example.
    """
    scaler = {} if accelerator.scaler is None else {"scaler": accelerator.scaler}
    bare = accelerator.unwrap_model(model, keep_torch_compile=False)
    return Guard(bare, unwrapped_optimizer(optimizer), run=run, **{**scaler, **options})


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
