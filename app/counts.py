"""What was compared of a run: counted apart from the page where that takes long."""

from __future__ import annotations

from typing import Final

import streamlit as st

from sdc_guard.store.trace_reader import TraceReader

from . import queries
from .follow import follow
from .records import Counted, Coverage
from .standing import Standing

_AFTER: Final = 1.0  # seconds: the page is there by then
_AT_ONCE: Final = 2_000_000  # rows that a page waits for: some tenths of a second


@st.cache_resource(max_entries=8, show_spinner=False)
def _counts_of(run: str) -> Standing[Counted]:
    """The one of this server for a run."""
    return Standing(1, pause=_AFTER)


@st.cache_data(max_entries=16, show_spinner=False)
def _rows_to_count(run: str, version: int, _reader: TraceReader) -> int:
    return queries.rows_to_count(_reader)


def coverage(reader: TraceReader, run: str, version: int) -> Coverage:
    """What was checked. Of a large run the digests are counted apart; then the page follows.

    Args:
        reader: of the run.
        run: names it among the runs of this server.
        version: of the run.
    """
    kept = _counts_of(run)
    key = tuple(attempt.started for attempt in reader.run_file.attempts)
    few = _rows_to_count(run, version, reader) <= _AT_ONCE
    asked = (key, version, lambda: queries.counted(reader))
    found = kept.of(*asked, at_once=few)
    if found is None or found.version != version:
        follow(lambda: kept.news(*asked, found))
    return queries.covered(reader, None if found is None else found.value)
