"""SDC Guard: finds silent data corruption in PyTorch training.

The names below are loaded when first used, so that the command lines start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .archive.restore import load_checkpoint
    from .detect.alert import Alert
    from .errors import SdcGuardError, TrainingHalted
    from .guard import Guard
    from .inject.injector import Injector
    from .store.reader import RunReader

__version__ = "0.1.0"
__all__ = [
    "Alert",
    "Guard",
    "Injector",
    "RunReader",
    "SdcGuardError",
    "TrainingHalted",
    "load_checkpoint",
]

_HOME = {
    "Alert": ".detect.alert",
    "Guard": ".guard",
    "Injector": ".inject.injector",
    "RunReader": ".store.reader",
    "SdcGuardError": ".errors",
    "TrainingHalted": ".errors",
    "load_checkpoint": ".archive.restore",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name], __name__), name)
