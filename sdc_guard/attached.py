"""The guards of this process: one per optimizer, and one per run's folder."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch

_log = logging.getLogger("sdc_guard")


class Closable(Protocol):
    """What is attached."""

    def close(self) -> None:
        """Detach."""


_by_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[Closable]] = (
    weakref.WeakKeyDictionary()
)
_by_run: dict[Path, weakref.ref[Closable]] = {}


def close_earlier(optimizers: Iterable[torch.optim.Optimizer], run: Path) -> None:
    """Close the guards that hold one of these optimizers or record into this folder.

    A notebook's cell runs again: the new guard takes the place of the old one.
    """
    references = [_by_optimizer.get(optimizer) for optimizer in optimizers]
    references.append(_by_run.get(run.absolute()))
    guards = {id(guard): guard for ref in references if ref and (guard := ref()) is not None}
    for guard in guards.values():
        _log.warning("SDC Guard: an earlier guard of this optimizer or folder is closed")
        guard.close()


def remember(guard: Closable, optimizers: Iterable[torch.optim.Optimizer], run: Path) -> None:
    """Take note of a guard that has just been attached."""
    reference = weakref.ref(guard)
    for optimizer in optimizers:
        _by_optimizer[optimizer] = reference
    _by_run[run.absolute()] = reference


def forget(guard: Closable) -> None:
    """Drop a guard that was closed."""
    for optimizer in [o for o, ref in _by_optimizer.items() if ref() in (guard, None)]:
        del _by_optimizer[optimizer]
    for run in [path for path, ref in _by_run.items() if ref() in (guard, None)]:
        del _by_run[run]


def close_if_alive(reference: weakref.ref[Closable]) -> None:
    """Close a guard that is still there."""
    guard = reference()
    if guard is not None:
        guard.close()
