"""The run that is shown: which one, and one reader of it for all browser sessions."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import streamlit as st

from sdc_guard.errors import RunFormatError, UsageError
from sdc_guard.store.reader import RunReader

_UNKNOWN = 0  # version of a run that is not there


def run_argument(arguments: Sequence[str]) -> Path:
    """The run's folder from the script's arguments, absolute.

    Raises:
        UsageError: not exactly one argument.
    """
    if len(arguments) != 1:
        raise UsageError(
            "the dashboard shows one run",
            where=" ".join(arguments) or "none given",
            next_step="streamlit run app/main.py -- RUN",
        )
    return Path(arguments[0]).expanduser().absolute()


class Source:
    """One run's reader, refreshed when the run's files have changed.

    It is shared by all browser sessions. `RunReader` uses a cursor per query; only looking for
    news and starting anew are kept to one thread here. A reader that is replaced is not closed:
    another session may be in the middle of a query, and the last one to let go of it closes it.

    Args:
        run: the run's folder; it need not exist yet.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._reader: RunReader | None = None
        self._started: float | None = None
        self._version = _UNKNOWN

    def version(self) -> int:
        """A number that changes whenever anything of the run is published or removed."""
        entries = list(_published(self.run))
        return hash(tuple(sorted(entries))) if entries else _UNKNOWN

    def reader(self) -> RunReader:
        """A reader that sees everything published by now.

        Raises:
            RunNotFound, RunFormatError: there is no run that can be read.
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

    def _current(self, version: int) -> RunReader:
        reader = self._reader
        if reader is not None and version != self._version:
            reader.refresh()
            if _started(reader) != self._started:
                reader = None  # another run took the folder: its files have the same names
        if reader is None:
            reader = RunReader(self.run)
            self._started = _started(reader)
        return reader


@st.cache_resource(max_entries=4, show_spinner=False)
def source_of(run: str) -> Source:
    """The one `Source` of this server for a run's folder."""
    return Source(Path(run))


def current_source() -> Source:
    """The source of the run given on the command line.

    Raises:
        UsageError: none was given.
    """
    return source_of(str(run_argument(sys.argv[1:])))


def _started(reader: RunReader) -> float | None:
    attempts = reader.run_file.attempts
    return attempts[0].started if attempts else None


def _published(run: Path) -> Iterator[tuple[str, int]]:
    """Name and modification time of each file that readers may see."""
    for path in (run / "run.json", *(run / "bisect").glob("*/result.json")):
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
