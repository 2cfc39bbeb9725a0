"""Scores a campaign's file: every detector with the same data, thresholds and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .baselines.sensor import SENSOR
from .bench import BASELINES, NONFINITE, Calibrated, LineUp, calibrate, line_up, warmed
from .catches import evidence_of
from .outcomes import AUDIT, CHECKS, DIGESTS, STATISTICS, Outcome, judged
from .reading import CampaignFile, CleanRecord
from .thresholds import BUDGET, FalseAlarms, incidents


@dataclass(frozen=True)
class Scored:
    """A campaign, scored.

    Attributes:
        plan: of the campaign.
        environment: versions and machine on which it was run.
        budget: false incidents a step, that thresholds were set for.
        warm_up: steps at the start of each clean run that were only taken in.
        calibrated: by model and detector.
        told: false incidents of the guard's own alerts in the judging runs, by model and kind of
            evidence.
        outcomes: of all trials with a fault that fired.
        controls: of those without.
        failed: why trials failed, and how many.
        unfired: trials whose fault never fired.
    """

    plan: Mapping[str, Any]
    environment: Mapping[str, str]
    budget: float
    warm_up: int
    calibrated: Mapping[str, Mapping[str, Calibrated]]
    told: Mapping[str, Mapping[str, FalseAlarms]]
    outcomes: tuple[Outcome, ...]
    controls: tuple[Outcome, ...]
    failed: tuple[tuple[str, int], ...]
    unfired: int

    @property
    def models(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(self.calibrated)

    @property
    def detectors(self) -> tuple[str, ...]:
        """All that were scored, the sensor first, its parts last."""
        names = dict.fromkeys(name for one in self.calibrated.values() for name in one)
        whole = [SENSOR, *(baseline.name for baseline in BASELINES), NONFINITE]
        return tuple([n for n in whole if n in names] + [n for n in names if n not in whole])


def score(path: Path, budget: float = BUDGET, entries: LineUp = line_up) -> Scored:
    """Score the file of a campaign.

    Args:
        path: of the file.
        budget: false incidents a step.
        entries: makes the detectors of a model.

    Raises:
        RunNotFound, RunFormatError, UsageError: as `CampaignFile`.
    """
    with CampaignFile(path) as results:
        groups = results.groups()
        warm_up = min((group.snapshot for group in groups), default=0)
        calibrated: dict[str, dict[str, Calibrated]] = {}
        told: dict[str, dict[str, FalseAlarms]] = {}
        for model in results.models:
            judging = list(results.clean_runs("judging", model))
            known = list(results.clean_runs("calibration", model))
            calibrated[model] = calibrate(known, judging, warm_up, budget, entries)
            told[model] = _told(judging)
        outcomes: list[Outcome] = []
        for group in groups:
            twin = results.clean_run("twin", group.model, group.seed).series
            ready = warmed(entries(twin.shapes), twin.part(twin.first_step, group.snapshot + 1))
            trials = results.trials(group)
            rest = twin.part(group.snapshot + 1, twin.first_step + len(twin))
            outcomes += judged(trials, ready, rest, calibrated[group.model])
        fired = [one for one in outcomes if one.trial.fired and not one.trial.control]
        return Scored(
            results.plan,
            results.environment(),
            budget,
            warm_up,
            calibrated,
            told,
            tuple(sorted(fired, key=lambda one: one.trial.trial)),
            tuple(one for one in outcomes if one.trial.control),
            tuple(results.failed()),
            sum(not (one.trial.fired or one.trial.control) for one in outcomes),
        )


def _told(runs: Sequence[CleanRecord]) -> dict[str, FalseAlarms]:
    """False incidents of the guard's own alerts, by kind of evidence."""
    steps = sum(len(run.series) for run in runs)
    return {
        kind: FalseAlarms(
            sum(
                incidents(sorted({a.step for a in run.alerts if evidence_of(a) == kind}))
                for run in runs
            ),
            steps,
        )
        for kind in (DIGESTS, CHECKS, STATISTICS, AUDIT)
    }
