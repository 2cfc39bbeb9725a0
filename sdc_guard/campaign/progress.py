"""How far a campaign is, on one line."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]

_SECONDS = 10.0  # between two lines


class Progress:
    """Counts what is finished of one kind, and tells when the rest may be.

    Args:
        what: is counted: "trials".
        total: how many there are to do.
        say: takes a line.
        clock: seconds.
    """

    def __init__(
        self, what: str, total: int, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._say, self._clock = what, total, say, clock
        self._done = self._failed = 0
        self._began = self._told = clock()

    def finished(self, *, failed: bool) -> None:
        """One more is finished."""
        self._done += 1
        self._failed += failed
        now = self._clock()
        if 1 < self._done < self._total and now - self._told < _SECONDS:
            return
        self._told = now
        each = (now - self._began) / self._done
        trouble = f", {self._failed} failed" if self._failed else ""
        left = _span(each * (self._total - self._done))
        self._say(f"{self._what}: {self._done:,} of {self._total:,}{trouble}, {each:.2f} s each, "
                  + (f"{left} left" if self._done < self._total else "done"))  # fmt: skip


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
