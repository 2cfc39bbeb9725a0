"""Judging everything: nothing is assumed of the order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import ceil

from .verdicts import Found, Probe, Verdict, found_from


class Scan:
    """Every place once, in order.

    Args:
        count: number of checkpoints.
        skipped: places that are not to be judged.
        known: verdicts that are known already.
        until_corrupt: stop at the first corrupt one.
        stage: which of the oracles judges.
    """

    def __init__(
        self,
        count: int,
        skipped: Collection[int] = (),
        known: Mapping[int, Verdict] | None = None,
        until_corrupt: bool = False,
        stage: int = 0,
    ) -> None:
        self.stage = stage
        self._places = [place for place in range(count) if place not in skipped]
        self._skipped = tuple(skipped)
        self._verdicts: dict[int, Verdict] = dict(known or {})
        self._probes: list[Probe] = []
        self._until_corrupt = until_corrupt

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """The next places in order."""
        return tuple(self._left()[:count])

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict."""
        self._verdicts[place] = verdict
        self._probes.append((place, verdict))

    def found(self) -> Found:
        """The first corrupt one, and the last clean one before it."""
        return found_from(self._verdicts, self._probes, self._skipped)

    def remaining(self, jobs: int = 1) -> int:
        """How many rounds are left."""
        return ceil(len(self._left()) / jobs)

    def _left(self) -> list[int]:
        first = self.found().first_corrupt if self._until_corrupt else None
        return [
            place
            for place in self._places
            if place not in self._verdicts and (first is None or place < first)
        ]
