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
        'Accelerate is not installed: pip install "sdc-guard-torch[accelerate]"'
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
        UsageError: the optimizer is one that torch's step hooks do not reach.
    """
    scaler = {} if accelerator.scaler is None else {"scaler": accelerator.scaler}
    bare = accelerator.unwrap_model(model, keep_torch_compile=False)
    return Guard(bare, unwrapped_optimizer(optimizer), run=run, **{**scaler, **options})


def unwrapped_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside Accelerate's wrapper, on which step hooks can be registered.

    Raises:
        UsageError: there is none.
    """
    found = optimizer
    while isinstance(found, AcceleratedOptimizer):
        found = found.optimizer
    if not isinstance(found, torch.optim.Optimizer):
        raise UsageError(
            f"{type(found).__module__}.{type(found).__qualname__} is not a torch optimizer",
            next_step="a guard follows the steps of torch.optim.Optimizer and its subclasses",
        )
    return found
