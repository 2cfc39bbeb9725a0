"""Reports on runs and archives written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.index import index
from forensics.journal import Session
from forensics.reporting.facts import Report
from forensics.reporting.gather import report_of_archive, report_of_run
from forensics.reporting.sessions_told import sessions_in
from forensics.sessions.home import Home, is_guarded
from sdc_guard import RunReader
from sdc_guard.errors import ArchiveIncomplete

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


def report_on(place: Path) -> Report:
    """The report on what lies there, made at NOW."""
    try:
        found = index(place)
    except ArchiveIncomplete:
        found = []
    home = Home.of(place, None)
    if not is_guarded(place):
        return report_of_archive(str(place), found, sessions_in(home), NOW)
    with RunReader(place) as reader:
        told = sessions_in(home, len(reader.run_file.attempts))
        return report_of_run(reader, str(place), found, told, NOW)


def finished(run: Path, result: Mapping[str, Any], at: float | None = 1e9) -> Session:
    """A session of the run with this result."""
    session = Session.new(run)
    stored = dict(result) if at is None else {**result, "finished": at}
    (session.folder / "result.json").write_text(json.dumps(stored), encoding="utf-8")
    return session
