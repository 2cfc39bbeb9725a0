"""The state of each of several runs in a line, read in turn and within a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb
import streamlit as st

from sdc_guard.errors import SdcGuardError
from sdc_guard.store.trace_reader import TraceReader

from . import queries, sessions
from .fleet import Run
from .records import Newest
from .source import Source
from .verdict import State, judge


@dataclass(frozen=True)
class Summary:
    """A run in a line.

    Attributes:
        state: the verdict's; "unknown" where the run cannot be read.
        headline: the verdict in a sentence, or why there is none.
        newest: the newest step; None before the first.
        first_bad: the first step that something was found at.
    """

    state: State
    headline: str
    newest: Newest | None = None
    first_bad: int | None = None


def summed_up(reader: TraceReader) -> Summary:
    """The state of a run; digests are not counted, which takes long and changes no verdict."""
    covered = queries.coverage(reader, compared=False)
    incidents, kept = queries.incidents(reader), queries.checkpoints(reader)
    results = sessions.session_results(reader.run, len(reader.run_file.attempts))
    verdict = judge(covered, incidents, kept, results)
    return Summary(
        verdict.state,
        verdict.headline,
        queries.newest_step(reader),
        sessions.first_bad(incidents, results),
    )


class Summaries:
    """Keeps what was read of each run until something new is published in it.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, Summary]] = {}

    def of(self, runs: Sequence[Run], seconds: float) -> list[Summary | None]:
        """The summaries of the runs, in their order.

        Those that waited longest are looked at first, and after `seconds` no further one: what is
        known of the rest is taken as it was, None where that is nothing. At least one is read.
        """
        with self._lock:
            end = self._clock() + seconds
            waited = {location: place for place, location in enumerate(self._known)}
            for run in sorted(runs, key=lambda run: waited.get(run.location, -1)):
                self._read(run)
                if self._clock() >= end:
                    break
            return [self._known.get(run.location, (0, None))[1] for run in runs]

    def _read(self, run: Run) -> None:
        # taken out and put last: the order of the keys is that in which runs were looked at
        before = self._known.pop(run.location, None)
        source = Source(run.location)
        version = source.version()
        if before is None or before[0] != version:
            before = (version, _read(source))
        self._known[run.location] = before


def _read(source: Source) -> Summary:
    try:
        return summed_up(source.reader())
    except SdcGuardError as error:
        return Summary("unknown", str(error))
    except (duckdb.Error, OSError) as error:
        return Summary("unknown", f"cannot be read now: {(str(error) or 'gone').splitlines()[0]}")


@st.cache_resource(show_spinner=False)
def summaries() -> Summaries:
    """The one `Summaries` of this server."""
    return Summaries()
