"""Gathering all that a report says; the only part of it that reads files and tables."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Final

from sdc_guard.lake.location import is_lake, without_password
from sdc_guard.store.trace_reader import TraceReader

from ..accused import accused_rank, machine_of
from ..checkpoint import Checkpoint
from ..proven_alerts import first_proven_alert
from ..recorded import solved_at
from ..recurring import recurring
from ..result import STORED_BYTES
from ..spacing import duplicates, gaps
from . import from_trace
from .across_sessions import with_others
from .curves import alert_steps, curves
from .facts import Headline, Recorded, Report, Told
from .going_back import go_back, with_advice
from .headline import (
    after_search,
    chosen,
    of_archive,
    of_session,
    of_trace,
    with_checkpoints,
    with_unread_bytes,
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
    place = without_password(place) if is_lake(place) else place
    answer = with_checkpoints(_answer(reader, known, sessions, count), checkpoints)
    answer = with_unreadable(with_others(answer, sessions), checkpoints)
    answer = _with_machine(reader, with_unread_bytes(answer, checkpoints, sessions))
    elsewhere = from_trace.clean_checkpoints(reader) if is_lake(place) else None
    back = go_back(
        answer, checkpoints, place, reader.run_file.resume, known.last, elsewhere=elsewhere
    )
    return Report(
        name=reader.run_file.name,
        place=place,
        source="run",
        made=now,
        versions=versions(),
        headline=with_advice(answer, back),
        go_back=back,
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


def _answer(
    reader: TraceReader, known: Recorded, sessions: Sequence[Told], alerts: int
) -> Headline:
    dtypes = {layer.name: layer.dtype for layer in reader.run_file.named}
    told = chosen(sessions)
    proven = from_trace.first_proven(reader)
    incidents = from_trace.open_incidents(reader)
    by_session = None if told is None else of_session(told, dtypes)
    if by_session is not None and by_session.state in ("corrupt", "suspect"):
        return by_session
    tensors = [] if proven is None else [x.as_dict() for x in solved_at(reader, proven).values()]
    alert = first_proven_alert(reader)
    by_trace = of_trace(
        known, proven, incidents, alerts, tensors, dtypes, len(reader.damaged), alert
    )
    if by_session is None:
        return by_trace
    if by_trace.state not in ("corrupt", "suspect"):
        return by_session
    return after_search(by_trace, by_session)


def _with_machine(reader: TraceReader, answer: Headline) -> Headline:
    """The same answer, with where the accused rank ran; alerts that accuse one name it, too."""
    step, rank = answer.first_corrupt, answer.rank
    if step is None or answer.kind == STORED_BYTES or answer.source == "checkpoints":
        return answer
    if rank is None and (answer.source == "alerts" or reader.run_file.world_size == 1):
        rank = accused_rank(reader, step, proven=answer.proven)
    return replace(answer, rank=rank, machine=machine_of(reader, step, rank))


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
