"""The run that is shown: which one, and one reader of it for all browser sessions."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import streamlit as st

from sdc_guard.archive.folders import CONVICTIONS
from sdc_guard.errors import RunFormatError, SdcGuardError
from sdc_guard.lake.location import is_lake, parse
from sdc_guard.store.opening import open_run
from sdc_guard.store.ring import left_rings
from sdc_guard.store.trace_reader import TraceReader

from .fleet import Fleet, Run, runs_given

CHOSEN = "chosen run"  # in the session's state: the name of the run looked at
_LOOK_AGAIN_SECONDS = 10
_UNKNOWN = 0  # version of a run that is not there


class Source:
    """One run's reader, refreshed when the run's files, or the lake's snapshot, have changed.

    It is shared by all browser sessions. A reader uses a cursor per query; only looking for
    news and starting anew are kept to one thread here. A reader that is replaced is not closed:
    another session may be in the middle of a query, and the last one to let go of it closes it.

    Args:
        run: the run's folder, or its location in a lake; it need not exist yet.
        attempt: read it as it was during this attempt; as it is now by default.

    Attributes:
        location: as it was given.
        run: the folder; of a run in a lake, a path that names it and does not exist.
    """

    def __init__(self, run: str | Path, attempt: int | None = None) -> None:
        self.location = run
        self._attempt = attempt
        self.run = Path(str(parse(str(run))[0])) if is_lake(run) else Path(run)
        self._lock = threading.RLock()
        self._reader: TraceReader | None = None
        self._started: float | None = None
        self._version = _UNKNOWN

    def version(self) -> int:
        """A number that changes whenever anything of the run is published or removed."""
        if is_lake(self.location):
            return self._snapshot()
        entries = list(_published(self.run))
        return hash(tuple(sorted(entries))) if entries else _UNKNOWN

    def reader(self) -> TraceReader:
        """A reader that sees everything published by now.

        Raises:
            RunNotFound, RunFormatError: there is no run that can be read.
            UsageError: the run has no such attempt.
        """
        with self._lock:
            version = self.version()
            try:
                reader = self._current(version)
            except duckdb.Error as error:
                self._reader = None
                raise RunFormatError(
                    f"the trace cannot be read ({str(error).splitlines()[0]})",
                    where=str(self.run / "trace"),
                    next_step="the page tries again when the trace changes",
                ) from None
            except (
                Exception
            ):  # because a reader that failed half-way must not be kept; it is raised on
                self._reader = None
                raise
            self._reader, self._version = reader, version
            return reader

    def _snapshot(self) -> int:
        with self._lock:
            try:
                if self._reader is None:
                    self._reader = open_run(self.location, self._attempt)
                    self._started = _started(self._reader)
                return self._reader.newest_snapshot()
            except SdcGuardError:
                self._reader = None  # it may have lost the catalog for good
                return _UNKNOWN

    def _current(self, version: int) -> TraceReader:
        reader = self._reader
        if reader is not None and version != self._version:
            reader.refresh()
            if _started(reader) != self._started:
                reader = None  # another run took the folder: its files have the same names
        if reader is None:
            reader = open_run(self.location, self._attempt)
            self._started = _started(reader)
        return reader


@st.cache_resource(max_entries=8, show_spinner=False)
def source_of(run: str | Path, attempt: int | None = None) -> Source:
    """The one `Source` of this server for a run's location, as of an attempt or as it is now."""
    return Source(run, attempt)


def given_runs() -> Fleet:
    """The runs of the command line; a folder of runs is looked through again now and then."""
    return _fleet(tuple(sys.argv[1:]))


@st.cache_data(ttl=_LOOK_AGAIN_SECONDS, max_entries=4, show_spinner=False)
def _fleet(arguments: tuple[str, ...]) -> Fleet:
    return runs_given(arguments)


def current_run() -> Run:
    """The run that this browser session looks at: the one it chose, or the first.

    Raises:
        UsageError: none was given on the command line.
    """
    fleet = given_runs()
    return fleet.named(str(st.session_state.get(CHOSEN, ""))) or fleet.runs[0]


def current_source() -> Source:
    """The source of the run that this browser session looks at.

    Raises:
        UsageError: none was given on the command line.
    """
    return source_of(current_run().location)


def _started(reader: TraceReader) -> float | None:
    attempts = reader.run_file.attempts
    return attempts[0].started if attempts else None


def _published(run: Path) -> Iterator[tuple[str, int]]:
    """Name and modification time of each file that readers may see."""
    # what a replay proved stands apart: to take it back, its line is deleted
    proven = run / "archive" / CONVICTIONS
    results = (run / "bisect").glob("*/result.json")
    for path in (run / "run.json", proven, *results, *left_rings(run)):
        try:
            yield str(path), path.stat().st_mtime_ns
        except OSError:
            continue  # not there, or gone since it was listed
    for folder in (run / "trace").glob("*/rank=*"):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        yield entry.path, entry.stat().st_mtime_ns
        except OSError:
            continue
