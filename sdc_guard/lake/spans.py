"""Which segment numbers are in the lake: ranges, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Spans:
    """A set of segment numbers, kept as few ranges: a long run has millions of segments.

    Args:
        spans: (first, last), in any order; they may overlap.
    """

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._spans: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            self._append(first, last)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._spans, number, key=lambda span: span[0])
        return place > 0 and number <= self._spans[place - 1][1]

    def add(self, spans: Iterable[tuple[int, int]]) -> None:
        """Take more ranges in."""
        known, self._spans = self._spans, []
        for first, last in sorted([*known, *spans]):
            self._append(first, last)

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in it, in order."""
        gaps = []
        start = first
        for a, b in self.within(first, last):
            if a > start:
                gaps.append((start, a - 1))
            start = max(start, b + 1)
        return [*gaps, (start, last)] if start <= last else gaps

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges that touch a range."""
        place = max(0, bisect_right(self._spans, first, key=lambda span: span[0]) - 1)
        found = []
        for a, b in self._spans[place:]:
            if a > last:
                break
            if b >= first:
                found.append((a, b))
        return found

    def _append(self, first: int, last: int) -> None:
        if self._spans and first <= self._spans[-1][1] + 1:
            before, end = self._spans[-1]
            self._spans[-1] = (before, max(end, last))
        else:
            self._spans.append((first, last))
