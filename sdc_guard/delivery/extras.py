"""Libraries that only some users need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import UsageError


def optional(module: str, extra: str) -> Any:
    """Import a library of an extra.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise UsageError(
            f"{module.partition('.')[0]} is not installed",
            next_step=f'pip install ".[{extra}]" in a clone of SDC Guard',
        ) from None
