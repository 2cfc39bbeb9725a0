"""Being told by the autograd engine that a backward ends, after all that others have queued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Backwards(Protocol):
    """Who is told of the ends of backwards."""

    def queue(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called when the backward under way ends; False when that fails."""

    def end(self) -> None:
        """A backward has ended."""


class EndOfBackward:
    """Called twice by the autograd engine at the end of a backward, which alone keeps it alive.

    A backward that ends by an exception calls nothing, and lets go of it: so the next one is
    not taken for a part of it.

    Args:
        backwards: told at the second call: whatever was queued before the first one has run then.
    """

    def __init__(self, backwards: Backwards) -> None:
        self._backwards = backwards
        self._last = False

    def __call__(self) -> None:
        if self._last:
            self._backwards.end()
            return
        self._last = True
        self._backwards.queue(self)
