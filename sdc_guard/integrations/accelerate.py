"""A guard for what `Accelerator.prepare` returned."""

from __future__ import annotations

import logging
import os
import weakref
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

_log = logging.getLogger("sdc_guard")


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
            written, until the guard is closed: every rank that calls save_state calls Guard.seal,
            and rank 0 writes the seal. Not those that
            Accelerate names by itself (`automatic_checkpoint_naming`): it takes all that lies in
            their folder for checkpoints, counts it and deletes it.
        options: further arguments of Guard.

    Raises:
        UsageError: the optimizer is none of torch, DeepSpeed's for example.
    """
    scaler = {} if accelerator.scaler is None else {"scaler": accelerator.scaler}
    bare = accelerator.unwrap_model(model, keep_torch_compile=False)
    guard = Guard(bare, unwrapped_optimizer(optimizer), run=run, **{**scaler, **options})
    if seal_checkpoints:
        _Sealing.of(accelerator).seal_for(guard)
    return guard


class _Sealing:
    """Seals what an accelerator saves; one for each, with the newest of its guards.

    Neither keeps the guard, nor what it guards: the accelerator may outlive them by far.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._guard: weakref.ref[Guard] | None = None
        self._told = False
        self._replaced = Replaced(accelerator, "save_state", self._save_state)

    @classmethod
    def of(cls, accelerator: Accelerator) -> _Sealing:
        """That of an accelerator, made if there is none."""
        around = getattr(vars(accelerator).get("save_state"), "func", None)
        known = getattr(around, "__self__", None)
        return known if isinstance(known, cls) else cls(accelerator)

    def seal_for(self, guard: Guard) -> None:
        """Seal by this guard from now on, as long as it is there."""
        self._guard = weakref.ref(guard, self._is_gone)

    def _is_gone(self, guard: weakref.ref[Guard]) -> None:
        if guard is self._guard:
            self._replaced.undo()

    def _save_state(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        folder = inner(*args, **kwargs)
        guard = None if self._guard is None else self._guard()
        if guard is None or not isinstance(folder, str | os.PathLike):
            return folder
        if self._replaced.owner.project_configuration.automatic_checkpoint_naming:
            self._tell()
        else:
            guard.seal(os.fspath(folder), guard.step - 1)
        return folder

    def _tell(self) -> None:
        """Once. A seal beside them would count as one of `total_limit`, and be loaded as one."""
        if not self._told:
            self._told = True
            _log.warning(
                "SDC Guard: checkpoints are not sealed, because Accelerate names them "
                "(automatic_checkpoint_naming) and would take a seal for one of them: give "
                "save_state a folder"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without the guard: a copy, in another process perhaps, seals nothing."""
        return {**vars(self), "_guard": None}


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
