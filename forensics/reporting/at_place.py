"""The report of whatever lies at a place, and its three forms as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sdc_guard.errors import ArchiveIncomplete, RunNotFound, UsageError
from sdc_guard.lake.location import is_lake
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import Checkpoint
from ..index import index
from ..journal import FILE, Session
from ..locations import location, only_local
from ..sessions.home import Home, is_guarded
from .answered import Answered, answered
from .facts import Report, Told
from .gather import report_of_archive, report_of_run
from .sessions_told import named_archive, sessions_in, told

FORMS: Final = ("md", "html", "json")

Opened = Callable[[str | Path, int | None], TraceReader]


def report_at(place: str, named: Path | None, now: float, opened: Opened) -> Report:
    """The report.

    Args:
        place: a run's folder, an archive of checkpoints, or a run's location in a lake.
        named: folder of the sessions, or of one of them, if the user named one.
        now: seconds since the epoch.
        opened: opens the trace of a run at one of its attempts, the newest with None.

    Raises:
        UsageError, RunNotFound, RunFormatError: there is nothing to report, or it is elsewhere.
    """
    if is_lake(place):
        with opened(place, None) as reader:
            return report_of_run(reader, place, (), (), now)
    path = location(place)
    only_local(path, "a report is not written of what is", "copy the run or the archive")
    if not is_guarded(path) and (found := _checkpoints(path)):
        return report_of_archive(place, found, _sessions(path, named, None), now)
    with opened(place, None) as reader:
        known = _sessions(path, named, len(reader.run_file.attempts))
        return report_of_run(reader, place, _checkpoints(path), known, now)


def answer_at(place: str, reader: TraceReader) -> Answered:
    """The answer of `report_at` of a run, without the rest of the report.

    Args:
        place: a run's folder, or its location in a lake.
        reader: of the run, at its newest attempt.

    Raises:
        UsageError: the run is elsewhere.
    """
    if is_lake(place):
        return answered(reader, place, (), ())
    path = location(place)
    only_local(path, "a report is not written of what is", "copy the run or the archive")
    known = _sessions(path, None, len(reader.run_file.attempts))
    return answered(reader, place, _checkpoints(path), known)


def written(report: Report, form: str) -> str:
    """The report as text.

    Args:
        report: to be written.
        form: one of FORMS.
    """
    if form == "html":
        from .page import page

        text = page(report)
    elif form == "json":
        from .as_json import as_json

        text = as_json(report)
    else:
        from .markdown import markdown

        text = markdown(report)
    return text if text.endswith("\n") else text + "\n"


def _checkpoints(path: Path) -> list[Checkpoint]:
    """Those that are there; a run need not have any."""
    try:
        return index(path)
    except (ArchiveIncomplete, RunNotFound):
        return []


def _sessions(path: Path, named: Path | None, attempts: int | None) -> tuple[Told, ...]:
    """The sessions of what lies at `path`, or those in the folder that is named.

    Raises:
        UsageError: the newest there is of something else.
    """
    archive = None if named is None else named_archive(named)
    if archive is not None and archive != path.absolute():
        raise UsageError(
            f"the session there is of {archive}",
            where=str(named),
            next_step="give that one, or another --session DIR",
        )
    if named is not None and (named / FILE).is_file():
        return (told(Session(named), attempts=attempts),)
    return sessions_in(Home.of(path, named), attempts)
