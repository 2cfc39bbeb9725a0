"""All detectors on the same runs: their thresholds, and what those do to healthy runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .baselines.average_multiple import AverageMultiple
from .baselines.ema_z import EmaZ
from .baselines.forest import Forest
from .baselines.frozen_maximum import FrozenMaximum
from .baselines.loss_only import LossOverMean, LossRobustZ
from .baselines.max_jump import MaxJump
from .baselines.nonfinite import Nonfinite
from .baselines.scorer import Entry, Scorer
from .baselines.sensor import PUBLISHED, SENSOR, SensorEntry
from .baselines.sigma_skip import SigmaSkip
from .reading import CleanRecord
from .series import Floats, Shapes, SignalSeries
from .thresholds import FalseAlarms, Threshold, judge, peaks, threshold_for

BASELINES: Final[tuple[type[Scorer], ...]] = (
    FrozenMaximum,
    EmaZ,
    SigmaSkip,
    MaxJump,
    LossRobustZ,
    LossOverMean,
    Forest,
    AverageMultiple,
)
NONFINITE: Final = Nonfinite.name
_SCORERS: Final[tuple[type[Scorer], ...]] = (*BASELINES, Nonfinite)

LineUp = Callable[[Shapes], Sequence[Entry]]


def line_up(shapes: Shapes) -> list[Entry]:
    """A new instance of every detector.

    Args:
        shapes: of the layers.
    """
    return [*(baseline() for baseline in BASELINES), Nonfinite(), SensorEntry(shapes)]


@dataclass(frozen=True)
class Calibrated:
    """A detector's thresholds for one model, and its false alarms in other healthy runs.

    Attributes:
        name: of the detector.
        budget: the threshold for the budget of false incidents.
        published: that of the source; None where it has none.
        at_budget, as_published: false alarms in the judging runs.
        healthy: of each of these, the largest score of its steps.
    """

    name: str
    budget: Threshold
    published: Threshold | None
    at_budget: FalseAlarms
    as_published: FalseAlarms | None
    healthy: tuple[Floats, ...] = ()


def streams(entries: Iterable[Entry], series: SignalSeries) -> dict[str, Floats]:
    """Scores of the next steps by detector, each of shape (steps, layers + 1)."""
    found: dict[str, Floats] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        for entry in entries:
            found |= entry.streams(series)
    return found


def warmed(entries: Sequence[Entry], history: SignalSeries) -> Sequence[Entry]:
    """The entries, after the steps of a history."""
    with np.errstate(invalid="ignore", over="ignore"):
        for entry in entries:
            entry.warm(history)
    return entries


def calibrate(
    runs: Iterable[CleanRecord],
    judging: Iterable[CleanRecord],
    warm_up: int,
    budget: float,
    entries: LineUp = line_up,
) -> dict[str, Calibrated]:
    """Set every detector's threshold on some healthy runs, and judge it on others.

    Args:
        runs: of calibration.
        judging: others.
        warm_up: steps at the start of each run that are only taken in, as in the trials.
        budget: false incidents a step.
        entries: makes the detectors of a model.
    """
    known = [_clean_streams(run, warm_up, entries) for run in runs]
    others = [_clean_streams(run, warm_up, entries) for run in judging]
    published: dict[str, float | None] = {one.name: one.published for one in _SCORERS}
    published[SENSOR] = PUBLISHED
    names = dict.fromkeys(name for run in (*known, *others) for name in run)
    return {
        name: _calibrated(
            name,
            [peaks(run[name]) for run in known],
            [peaks(run[name]) for run in others],
            published.get(name),
            budget,
        )
        for name in names
    }


def _clean_streams(run: CleanRecord, warm_up: int, entries: LineUp) -> dict[str, Floats]:
    series = run.series
    begin = series.first_step + min(warm_up, len(series))
    ready = warmed(entries(series.shapes), series.part(series.first_step, begin))
    return streams(ready, series.part(begin, series.first_step + len(series)))


def _calibrated(
    name: str, known: list[Floats], others: list[Floats], published: float | None, budget: float
) -> Calibrated:
    steps = sum(map(len, known))
    source = None if published is None else Threshold(published, "published", steps)
    # what is not finite is counted, and its limit of none is no matter of calibration
    limit = source if name == NONFINITE and source else threshold_for(known, budget)
    return Calibrated(
        name,
        limit,
        source,
        judge(others, limit.value),
        None if source is None else judge(others, source.value),
        tuple(others),
    )
