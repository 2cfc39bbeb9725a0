"""Looking for the first clean checkpoint after corrupt ones: the same search, seen in a mirror."""

from __future__ import annotations

from typing import Final

from .planner import Planner
from .verdicts import Found, Verdict

_OTHER: Final[dict[Verdict, Verdict]] = {
    "clean": "corrupt",
    "corrupt": "clean",
    "untestable": "untestable",
}


def other(verdict: Verdict) -> Verdict:
    """Clean for corrupt, corrupt for clean."""
    return _OTHER[verdict]


class Mirrored:
    """A search that takes clean for corrupt and corrupt for clean.

    In what it finds `last_clean` is the last corrupt place, and `first_corrupt` the first clean
    one after it; so are the probes.
    """

    def __init__(self, inner: Planner) -> None:
        self._inner = inner

    @property
    def stage(self) -> int:
        """That of the search inside."""
        return self._inner.stage

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """As the search inside."""
        return self._inner.ask(count)

    def tell(self, place: int, verdict: Verdict) -> None:
        """Pass the verdict on in the mirror."""
        self._inner.tell(place, other(verdict))

    def found(self) -> Found:
        """What the search inside found."""
        return self._inner.found()

    def remaining(self, jobs: int = 1) -> int:
        """As the search inside."""
        return self._inner.remaining(jobs)
