"""What a search would take: `sdc-bisect run --dry-run`. Nothing is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .checkpoint import Checkpoint
from .oracles.judgement import Oracle
from .progress import duration
from .search import Found, Verdict
from .search.asked import Asked
from .search.choose import planner_for
from .search.planner import Planner
from .search.predict import EDGES, Prediction, predict
from .span import Span, span

# Where the rates of a noisy judge are not given; the means of the priors
ASSUMED: Final = (0.05, 0.2)
_NOISY_EDGES: Final = 60  # each search takes some milliseconds


@dataclass(frozen=True)
class Predicted:
    """A prediction for an archive.

    Attributes:
        checkpoints: that would be searched, without those to skip.
        untestable: how many of them are known to be so, each one more judging at most.
        prediction: of the judgings.
        cost: seconds of one, None when it is not known.
        jobs: at once.
        rates: of false positives and negatives that were assumed; None for a judge without.
    """

    checkpoints: int
    untestable: int
    prediction: Prediction
    cost: float | None
    jobs: int
    rates: tuple[float, float] | None

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        found = self.prediction
        return {
            "checkpoints": self.checkpoints,
            "untestable": self.untestable,
            "probes": {"best": found.best, "worst": found.worst, "expected": found.expected},
            "jobs": self.jobs,
            "rounds": found.rounds,
            "seconds": None if self.cost is None else self._seconds(self.cost),
        }

    def lines(self) -> list[str]:
        """In words."""
        found = self.prediction
        text = [
            f"{self.checkpoints} checkpoints to search; nothing was judged.",
            f"judgings: {found.expected:.1f} expected, {found.best} at best, {found.worst} at "
            f"worst; in {found.rounds:.1f} rounds of up to {self.jobs}",
        ]
        if self.rates is not None:
            text.append(
                f"for a judge with false positives {self.rates[0]:g} and false negatives "
                f"{self.rates[1]:g}, by simulation"
            )
        if self.untestable:
            text.append(f"{self.untestable} cannot be read: each may take one more")
        if self.cost is None:
            text.append("how long one takes is not known: --cost SECONDS")
        else:
            seconds = self._seconds(self.cost)
            text.append(
                f"at {self.cost:g} s each: {duration(seconds['judging'])} of judging, "
                f"{duration(seconds['waiting'])} of waiting, as expected"
            )
        return text

    def _seconds(self, cost: float) -> dict[str, float]:
        """Of all judgings together, and until the answer is there."""
        return {
            "judging": self.prediction.expected * cost,
            "waiting": self.prediction.rounds * cost,
        }


def predicted(
    candidates: Sequence[Checkpoint], oracle: Oracle, asked: Asked, jobs: int
) -> Predicted:
    """What a search of these checkpoints takes.

    Raises:
        UsageError: as `span`.
    """
    return predicted_of(span(candidates, asked), (), oracle, asked, jobs)


def predicted_of(
    part: Span,
    told: Sequence[tuple[int, Verdict]],
    oracle: Oracle,
    asked: Asked,
    jobs: int,
) -> Predicted:
    """What is left of a search in which these places were judged."""
    places = [p for p in range(len(part.candidates)) if p not in part.skipped]
    renumbered = {old: new for new, old in enumerate(places)}
    trusted = {renumbered[old]: verdict for old, verdict in part.trusted.items()}
    known = [(renumbered[old], verdict) for old, verdict in told if old in renumbered]
    rates = None
    if asked.noise is not None:
        given = (asked.noise.false_positive, asked.noise.false_negative)
        rates = (given[0] or ASSUMED[0], given[1] or ASSUMED[1])

    def start() -> Planner:
        return planner_for(asked, len(places), (), trusted, told=known)

    prediction = predict(
        start,
        len(places),
        jobs,
        rates=rates,
        repeatable=asked.noise is None or asked.noise.repeatable,
        edges=EDGES if rates is None else _NOISY_EDGES,
        mirrored=asked.first_good,
        between=_edges(start().found(), len(places)) if rates is None else None,
    )
    untestable = sum(not part.candidates[place].readable for place in places)
    return Predicted(len(places), untestable, prediction, oracle.cost, jobs, rates)


def _edges(found: Found, count: int) -> tuple[int, int]:
    """The first and the last place where the edge can be, by what is known."""
    first = 0 if found.last_clean is None else found.last_clean + 1
    return first, count if found.first_corrupt is None else found.first_corrupt
