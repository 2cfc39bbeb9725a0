"""What found the fault of each trial, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .baselines.scorer import Entry
from .baselines.sensor import SENSOR
from .bench import NONFINITE, Calibrated, streams
from .catches import Catch, caught, earliest, evidence_of, said_first
from .reading import Said, TrialRecord
from .series import Floats, SignalSeries
from .thresholds import peaks

# the evidence beside detectors that are scored from signals
DIGESTS: Final = "digests"
CHECKS: Final = "checks"
STATISTICS: Final = "statistics"
AUDIT: Final = "audit"
MANIFEST: Final = "manifest"
REPLAY: Final = "replay"
LIVE: Final = "all live"
AFTERWARDS: Final = "with replay"
_UNCOUNTED: Final = ("masked", None)


@dataclass(frozen=True)
class Outcome:
    """One trial, judged.

    Attributes:
        trial: what was done, and what became of it.
        budget: first alarm by detector, at the threshold for the budget, the rule alone.
        published: likewise, at the threshold of the source.
        evidence: first alarm by kind of the guard's evidence.
        peak: largest score by detector from the fault on; −∞ where there is none.
    """

    trial: TrialRecord
    budget: Mapping[str, Catch | None]
    published: Mapping[str, Catch | None]
    evidence: Mapping[str, Catch | None]
    peak: Mapping[str, float]

    @property
    def counted(self) -> bool:
        """Whether there is anything to find: a bit of what was trained or saved is another one.

        A fault that left every bit of state, and of the checkpoint, as it would have been is
        masked, and nobody's to find.
        """
        return self.trial.effect not in _UNCOUNTED

    def found_by(self, name: str, *, alone: bool = False) -> Catch | None:
        """The first alarm of a detector at the budget, or of a kind of evidence.

        Args:
            name: of either.
            alone: without the check for values that are not finite, which else stands beside
                every detector.
        """
        if name in self.evidence:
            return self.evidence[name]
        rule = self.budget.get(name)
        return rule if alone else earliest([rule, self.budget.get(NONFINITE)])

    def found_as_published(self, name: str) -> Catch | None:
        """The first alarm of a detector at its own threshold, or for what is not finite."""
        return earliest([self.published.get(name), self.published.get(NONFINITE)])


def judged(
    trials: Sequence[TrialRecord],
    ready: Sequence[Entry],
    twin: SignalSeries,
    calibrated: Mapping[str, Calibrated],
) -> list[Outcome]:
    """Judge trials that begin at the same state.

    Args:
        trials: whose steps all begin at the first of `twin`.
        ready: detectors that have seen the steps before; they are left as they are.
        twin: the steps without a fault.
        calibrated: thresholds by detector.
    """
    without = _scores(ready, twin)
    # what the guard says of these steps without a fault, too, is not evidence of one
    usual = frozenset(alert for trial in trials if trial.control for alert in trial.alerts)
    return [
        _judged(trial, _scores(ready, trial.series), without, calibrated, usual) for trial in trials
    ]


def _scores(ready: Sequence[Entry], series: SignalSeries) -> dict[str, Floats]:
    return streams([entry.branch() for entry in ready], series)


def _judged(
    trial: TrialRecord,
    scores: Mapping[str, Floats],
    twin: Mapping[str, Floats],
    calibrated: Mapping[str, Calibrated],
    usual: frozenset[Said],
) -> Outcome:
    first, fault = trial.series.first_step, trial.fault_step
    budget: dict[str, Catch | None] = {}
    published: dict[str, Catch | None] = {}
    for name, values in scores.items():
        limits, without = calibrated[name], twin[name][: len(values)]
        budget[name] = caught(values, without, limits.budget.value, first, fault)
        if limits.published is not None:
            published[name] = caught(values, without, limits.published.value, first, fault)
    start = max(0, fault - first)
    peak = {name: float(peaks(values[start:]).max(initial=-float("inf")))
            for name, values in scores.items()}  # fmt: skip
    return Outcome(trial, budget, published, _evidence(trial, budget, usual), peak)


def _evidence(
    trial: TrialRecord, budget: Mapping[str, Catch | None], usual: frozenset[Said]
) -> dict[str, Catch | None]:
    found = {
        kind: said_first(
            (one for one in trial.alerts if evidence_of(one) == kind and one not in usual),
            trial.fault_step,
        )
        for kind in (DIGESTS, CHECKS, STATISTICS, AUDIT)
    }
    last = trial.series.first_step + len(trial.series) - 1
    found[MANIFEST] = Catch(last, None) if trial.manifest else None
    found[REPLAY] = None if trial.replay_step is None else Catch(trial.replay_step, None)
    statistics = [budget.get(SENSOR), budget.get(NONFINITE)]
    found[LIVE] = earliest([*statistics, found[DIGESTS], found[CHECKS], found[MANIFEST]])
    found[AFTERWARDS] = earliest([found[LIVE], found[AUDIT], found[REPLAY]])
    return found
