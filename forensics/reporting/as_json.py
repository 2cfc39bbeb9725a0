"""A report as one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from .facts import MAX_CHECKPOINTS, Report

SCHEMA: Final = {"name": "sdc-bisect.report", "version": 1}


def as_json(report: Report) -> str:
    """The report as text."""
    return json.dumps(content(report), indent=1, allow_nan=False) + "\n"


def content(report: Report) -> dict[str, Any]:
    """All that the report says; values that JSON has no number for are text."""
    shown = report.told_checkpoints()
    told: dict[str, Any] = {
        "schema": dict(SCHEMA),
        "run": report.name,
        "place": report.place,
        "source": report.source,
        "made": report.made,
        "versions": dict(report.versions),
        "headline": report.headline,
        "go_back": report.go_back,
        "recorded": _recorded(report),
        "curves": report.curves,
        "alerts": report.alerts,
        "alert_count": report.alert_count,
        "recurring": report.recurring,
        "checkpoints": [
            {**one.as_dict(), "judged": list(report.judged_of(one.step))} for one in shown
        ],
        "checkpoint_count": len(report.checkpoints),
        "remarks": report.remarks,
        "sessions": report.sessions,
        "results": report.results,
        "attempts": report.attempts,
        "blind": [{"step": s, "event": e, "detail": d} for s, e, d in report.blind],
        "unseen": report.unseen,
        "damaged": [{"file": file, "reason": reason} for file, reason in report.damaged],
        "limits": {"checkpoints": MAX_CHECKPOINTS},
    }
    return {name: _plain(value) for name, value in told.items()}


def _recorded(report: Report) -> dict[str, Any] | None:
    if report.recorded is None:
        return None
    return {**asdict(report.recorded), "share": report.recorded.share}


def _plain(value: Any) -> Any:
    """Only what JSON has: no dataclasses, no tuples, no NaN."""
    if is_dataclass(value) and not isinstance(value, type):
        # not asdict, which copies what is stored and looks into no Mapping that is no dict
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
