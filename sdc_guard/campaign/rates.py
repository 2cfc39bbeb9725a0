"""Shares with their intervals, latencies and localisation, over judged trials."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..detect.proportion import at_least, wilson
from .catches import Catch
from .outcomes import Outcome

Key = TypeVar("Key", bound=Hashable)
Finder = Callable[[Outcome], Catch | None]


@dataclass(frozen=True)
class Rate:
    """A share of trials.

    Attributes:
        hits: of them.
        of: trials.
    """

    hits: int
    of: int

    @property
    def share(self) -> float | None:
        """None without a trial."""
        return self.hits / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's."""
        return wilson(self.hits, self.of)

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        low, high = self.interval
        return {"hits": self.hits, "of": self.of, "share": self.share, "low": low, "high": high}


@dataclass(frozen=True)
class Found:
    """What one detector, or one kind of evidence, found.

    Attributes:
        recall: of the trials that count.
        same_step: found in the step of the fault; a detector of gradients is then in time to leave
            the step out.
        median, p90: steps from the fault to the alarm, of those found; None for none.
        named: those found whose alarm names a layer that was hit, of those found in which a layer
            was.
    """

    recall: Rate
    same_step: Rate
    median: float | None
    p90: float | None
    named: Rate

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "recall": self.recall.as_object(),
            "same_step": self.same_step.as_object(),
            "latency_median": self.median,
            "latency_p90": self.p90,
            "named": self.named.as_object(),
        }


def found(outcomes: Iterable[Outcome], finder: Finder) -> Found:
    """What a detector found of the outcomes that count.

    Args:
        outcomes: of trials.
        finder: the detector's first alarm in a trial.
    """
    counted = [outcome for outcome in outcomes if outcome.counted]
    pairs = [(outcome.trial, catch) for outcome in counted if (catch := finder(outcome))]
    waits = [catch.step - trial.fault_step for trial, catch in pairs]
    hit = [(trial, catch) for trial, catch in pairs if trial.layers_hit]
    return Found(
        Rate(len(pairs), len(counted)),
        Rate(sum(wait <= 0 for wait in waits), len(counted)),
        float(np.median(waits)) if waits else None,
        float(np.percentile(waits, 90)) if waits else None,
        Rate(sum(catch.layer in trial.layers_hit for trial, catch in hit), len(hit)),
    )


def grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], Key]) -> dict[Key, list[Outcome]]:
    """The outcomes by a key, in the order in which keys come first."""
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return groups


@dataclass(frozen=True)
class Paired:
    """Two detectors on the same trials.

    Attributes:
        only_first, only_second: trials that one found and the other did not.
        p: probability of so unequal numbers or more, were both equally good (McNemar's test, 1947,
            exact and two-sided).
    """

    only_first: int
    only_second: int
    p: float


def paired(outcomes: Sequence[Outcome], first: Finder, second: Finder) -> Paired:
    """Compare two detectors on the trials that count, each trial with itself."""
    counted = [outcome for outcome in outcomes if outcome.counted]
    found = [(bool(first(outcome)), bool(second(outcome))) for outcome in counted]
    more = sum(one and not other for one, other in found)
    less = sum(other and not one for one, other in found)
    p = min(1.0, 2 * at_least(max(more, less), more + less, 0.5))
    return Paired(more, less, p)
