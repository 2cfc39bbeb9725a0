"""Alerts that go out in one message: kept to a bounded size, however many there are."""

from __future__ import annotations

from collections import Counter

from ..detect.alert import Alert

SHOWN = 20  # alerts told one by one; the others are counted


class Gathered:
    """Counts alerts and keeps the first of them.

    Attributes:
        count: how many there were.
        first: the first of them, at most SHOWN; those that are proven before the others.
        detectors: how many by detector.
        proven: how many are proven by an exact comparison.
        first_step, last_step: of all of them; None before the first.
        dropped: how many more were lost because the queue was full.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Alert] = []
        self.detectors: Counter[str] = Counter()
        self.proven = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.dropped = 0

    def __bool__(self) -> bool:
        return self.count + self.dropped > 0

    def add(self, alert: Alert) -> None:
        """Take in one more."""
        self.count += 1
        self.detectors[alert.detector] += 1
        known = [step for step in (self.first_step, self.last_step) if step is not None]
        self.first_step = min([alert.step, *known])
        self.last_step = max([alert.step, *known])
        if alert.severity == "proven":
            self.proven += 1
            self._keep_proven(alert)
        elif len(self.first) < SHOWN:
            self.first.append(alert)

    def _keep_proven(self, alert: Alert) -> None:
        place = min(self.proven - 1, SHOWN)
        self.first.insert(place, alert)
        del self.first[SHOWN:]
