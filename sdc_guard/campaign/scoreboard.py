"""What a scored campaign says, as plain numbers: the JSON, and what report and figure show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .baselines.sensor import PARTS, SENSOR
from .bench import BASELINES, NONFINITE, Calibrated
from .curves import curve, windows
from .outcomes import AFTERWARDS, AUDIT, CHECKS, DIGESTS, LIVE, MANIFEST, REPLAY, Outcome
from .rates import Finder, found, grouped, paired
from .score import Scored
from .thresholds import FalseAlarms, Threshold

SCHEMA: Final = {"name": "sdc-guard.scoreboard", "version": 1}
# of the file of a checkpoint no detector of gradients can see anything
_AT_REST_IN_FILES: Final = "file"

Numbers = dict[str, Any]


def scoreboard(scored: Scored) -> Numbers:
    """Everything that is told of a campaign, made of what JSON has."""
    best = best_baseline(scored)
    trained = [one for one in scored.outcomes if one.trial.site != _AT_REST_IN_FILES]
    return {
        "schema": SCHEMA,
        "budget": scored.budget,
        "faults": _faults(scored),
        "controls": _controls(scored.controls),
        "best_baseline": best,
        "sites": _rows(scored.outcomes, best, "model", "mix", "site"),
        "sites_of_all_models": _rows(scored.outcomes, best, "mix", "site"),
        "effects": _rows(scored.outcomes, best, "effect"),
        "kinds": _rows(trained, best, "mix", "kind"),
        "detectors": [_detector(scored, trained, name) for name in _compared(scored)],
        "parts": [
            _detector(scored, trained, name, alone=True)
            for name in (*PARTS, NONFINITE)
            if name in scored.detectors
        ],
        "told": {
            model: {kind: _false(alarms) for kind, alarms in kinds.items()}
            for model, kinds in scored.told.items()
        },
        "warm_up": scored.warm_up,
        "failed": [{"error": error, "count": count} for error, count in scored.failed],
        "plan": dict(scored.plan),
        "environment": dict(scored.environment),
    }


def best_baseline(scored: Scored) -> str | None:
    """The baseline with the highest recall at the budget; None without a fault that counts.

    It is chosen by the very trials that it is shown for, which can only flatter it.
    """
    trained = [one for one in scored.outcomes if one.trial.site != _AT_REST_IN_FILES]
    hits = {
        name: found(trained, _finder(name)).recall.hits
        for name in (baseline.name for baseline in BASELINES)
        if name in scored.detectors
    }
    return max(hits, key=hits.__getitem__) if hits and any(o.counted for o in trained) else None


def _finder(name: str, *, alone: bool = False) -> Finder:
    return lambda outcome: outcome.found_by(name, alone=alone)


def _compared(scored: Scored) -> list[str]:
    return [name for name in scored.detectors if name not in (*PARTS, NONFINITE)]


def _faults(scored: Scored) -> Numbers:
    outcomes = scored.outcomes
    return {
        "injected": len(outcomes),
        "unchanged": sum(not one.trial.changed for one in outcomes),
        "masked": sum(one.trial.changed and not one.counted for one in outcomes),
        "counted": sum(one.counted for one in outcomes),
        "unfired": scored.unfired,
        "failed": sum(count for _, count in scored.failed),
        "guard_errors": sum(one.trial.guard_errors for one in outcomes),
    }


def _controls(controls: Sequence[Outcome]) -> Numbers:
    return {
        "count": len(controls),
        "differing": sum(one.trial.first_differs is not None for one in controls),
        "replay_differs": sum(one.trial.replay_step is not None for one in controls),
        "manifest": sum(one.trial.manifest for one in controls),
        "alarmed": sum(bool(one.trial.alerts) for one in controls),
    }


def _rows(outcomes: Iterable[Outcome], best: str | None, *keys: str) -> list[Numbers]:
    """Recall by columns of the trials."""

    def key(outcome: Outcome) -> tuple[Any, ...]:
        return tuple(getattr(outcome.trial, name) for name in keys)

    return [
        {
            **dict(zip(keys, values, strict=True)),
            "injected": len(group),
            "counted": sum(one.counted for one in group),
            "recall": _columns(group, best),
        }
        for values, group in grouped(outcomes, key).items()
    ]


def _columns(group: Sequence[Outcome], best: str | None) -> Numbers:
    audited = [one for one in group if one.trial.audited]
    columns: dict[str, tuple[Sequence[Outcome], Finder]] = {
        SENSOR: (group, _finder(SENSOR)),
        NONFINITE: (group, _finder(NONFINITE)),
        **{name: (group, _finder(name)) for name in (DIGESTS, CHECKS, MANIFEST, REPLAY)},
        AUDIT: (audited, _finder(AUDIT)),
        LIVE: (group, _finder(LIVE)),
        AFTERWARDS: (group, _finder(AFTERWARDS)),
    }
    if best is not None:
        columns["best baseline"] = (group, _finder(best))
    return {name: found(of, finder).as_object() for name, (of, finder) in columns.items()}


def _detector(
    scored: Scored, outcomes: Sequence[Outcome], name: str, *, alone: bool = False
) -> Numbers:
    limits = {m: of[name] for m, of in scored.calibrated.items() if name in of}
    at_budget = _finder(name, alone=alone)
    content: Numbers = {
        "name": name,
        "budget": {
            "thresholds": {m: _threshold(one.budget) for m, one in limits.items()},
            "false": _false(_sum(one.at_budget for one in limits.values())),
            **found(outcomes, at_budget).as_object(),
        },
        "published": _published(limits, outcomes, name),
        "curves": {m: _curve(scored, one, m, outcomes) for m, one in limits.items()},
    }
    if name != SENSOR and not alone and SENSOR in scored.detectors:
        pair = paired(outcomes, _finder(SENSOR), at_budget)
        content["against_sensor"] = {
            "only_sensor": pair.only_first, "only_this": pair.only_second, "p": pair.p,
        }  # fmt: skip
    return content


def _published(
    limits: Mapping[str, Calibrated], outcomes: Sequence[Outcome], name: str
) -> Numbers | None:
    source = next((one.published for one in limits.values() if one.published), None)
    if source is None:
        return None
    false = _sum(one.as_published for one in limits.values() if one.as_published)
    return {
        "threshold": source.value,
        "false": _false(false),
        **found(outcomes, lambda outcome: outcome.found_as_published(name)).as_object(),
    }


def _curve(
    scored: Scored, limits: Calibrated, model: str, outcomes: Sequence[Outcome]
) -> Numbers | None:
    length = int(scored.plan.get("after", 10))
    counted = [one for one in outcomes if one.trial.model == model and one.counted]
    peaks = [np.inf if one.budget.get(NONFINITE) else one.peak[limits.name] for one in counted]
    drawn = curve(windows(limits.healthy, length), np.array(peaks), length)
    return None if drawn is None else drawn.as_object()


def _sum(alarms: Iterable[FalseAlarms]) -> FalseAlarms:
    several = list(alarms)
    return FalseAlarms(sum(one.incidents for one in several), sum(one.steps for one in several))


def _false(alarms: FalseAlarms) -> Numbers:
    low, high = alarms.interval
    return {
        "incidents": alarms.incidents,
        "steps": alarms.steps,
        "rate": alarms.rate if alarms.steps else None,
        "low": low,
        "high": high,
    }


def _threshold(limit: Threshold) -> Numbers:
    value = limit.value if np.isfinite(limit.value) else None
    return {"value": value, "method": limit.method, "steps": limit.steps}
