"""Keeping the guard's own errors from the training."""

from __future__ import annotations

from typing import Any

from .store.health import Health


class Safely:
    """In its block an error is told and counted, and goes no further.

    Args:
        health: where it is counted.
        where: what the guard was doing.
    """

    def __init__(self, health: Health, where: str) -> None:
        self._health = health
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: Any, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._health.trouble(self._where, error)
        return True
