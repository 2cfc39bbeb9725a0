"""What a Guard becomes in a copy: the copy records nothing into the run of the original."""

from __future__ import annotations

from typing import Any


class DetachedGuard:
    """Has the methods of Guard and does nothing: what copy.deepcopy and pickle make of one."""

    step = 0

    def observe(self, loss: Any, batch: Any = None) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def checkpoint(self, objects: Any, step: int, *, wait: bool = True) -> None:
        """Nothing."""

    def checkpoint_written(self, timeout: float | None = None) -> None:
        """Nothing."""

    def seal(self, path: Any, step: int, *, wait: bool = False) -> None:
        """Nothing."""

    def flush(self, timeout: float = 30.0) -> bool:
        """Nothing; always True."""
        return True

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> DetachedGuard:
        return self

    def __exit__(self, *_: object) -> None:
        return None
