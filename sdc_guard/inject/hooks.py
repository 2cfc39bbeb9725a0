"""Hooks that do nothing in a copy of the model, or in one that is loaded from a pickle."""

from __future__ import annotations

from typing import Any


class SilentInCopies:
    """Base of callables that are registered as hooks: copies of them are silent."""

    def __reduce__(self) -> tuple[type[SilentHook], tuple[()]]:
        return SilentHook, ()


class SilentHook:
    """What such a hook becomes in a copy."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Nothing."""
