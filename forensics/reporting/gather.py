"""Gathering all that a report says; the only part of it that reads files and tables."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

from sdc_guard.lake.location import is_lake, without_password
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import Checkpoint
from ..recurring import recurring
from ..spacing import duplicates, gaps
from . import from_trace
from .across_sessions import with_others
from .answered import answered
from .curves import alert_steps, curves
from .facts import Report, Told
from .going_back import go_back, with_advice
from .headline import (
    chosen,
    of_archive,
    of_session,
    with_checkpoints,
    with_unreadable,
)

_IN_THE_FOLDER: Final = (
    "Checkpoints, and searches of them, are not uploaded: they lie in the run's folder."
)
_NOT_UPLOADED: Final = (
    "Files of the trace that could not be read were not uploaded, and are not named here."
)
_PACKAGES: Final = {
    "SDC Guard": "sdc-guard-torch",
    "torch": "torch",
    "DuckDB": "duckdb",
    "matplotlib": "matplotlib",
}


def report_of_run(
    reader: TraceReader,
    place: str,
    checkpoints: Sequence[Checkpoint],
    sessions: Sequence[Told],
    now: float,
) -> Report:
    """The report of a run that a guard recorded.

    Args:
        reader: of the run.
        place: its folder, or its location in a lake.
        checkpoints: by step.
        sessions: oldest first.
        now: seconds since the epoch.
    """
    known = from_trace.recorded(reader)
    rows, count = from_trace.alerts(reader)
    lines, marks = curves(reader), alert_steps(reader)
    answer = answered(reader, place, checkpoints, sessions)
    return Report(
        name=reader.run_file.name,
        place=without_password(place) if is_lake(place) else place,
        source="run",
        made=now,
        versions=versions(),
        headline=answer.headline,
        go_back=answer.go_back,
        recorded=known,
        curves=lines,
        alerts=rows,
        alert_steps=marks,
        alert_count=count,
        recurring=tuple(f"{one}." for one in recurring(reader)),
        checkpoints=tuple(checkpoints),
        remarks=(_IN_THE_FOLDER,) if is_lake(place) else _remarks(checkpoints),
        sessions=tuple(sessions),
        attempts=from_trace.attempts(reader),
        blind=from_trace.blind(reader),
        unseen=(
            *from_trace.unseen(reader, known),
            *((_NOT_UPLOADED,) if is_lake(place) else ()),
        ),
        damaged=tuple((str(path), reason) for path, reason in sorted(reader.damaged.items())),
    )


def report_of_archive(
    place: str, checkpoints: Sequence[Checkpoint], sessions: Sequence[Told], now: float
) -> Report:
    """The report of checkpoints that no guard recorded.

    Args:
        place: the archive.
        checkpoints: by step.
        sessions: oldest first.
        now: seconds since the epoch.
    """
    told = chosen(sessions)
    answer = of_archive(checkpoints) if told is None else of_session(told, {})
    answer = with_others(with_checkpoints(answer, checkpoints), sessions)
    answer = with_unreadable(answer, checkpoints)
    back = go_back(answer, checkpoints, place, None, None, guarded=False)
    return Report(
        name=place.rstrip("/").rpartition("/")[2] or place,
        place=place,
        source="archive",
        made=now,
        versions=versions(),
        headline=with_advice(answer, back),
        go_back=back,
        checkpoints=tuple(checkpoints),
        remarks=_remarks(checkpoints),
        sessions=tuple(sessions),
        unseen=("No guard recorded this training: losses, gradients, alerts and the state between "
                "the checkpoints are not known.",),
    )  # fmt: skip


def _remarks(checkpoints: Sequence[Checkpoint]) -> tuple[str, ...]:
    return (*gaps([one.step for one in checkpoints]), *duplicates(list(checkpoints)))


def versions() -> Mapping[str, str]:
    """Of what makes the report."""
    found = {"Python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
