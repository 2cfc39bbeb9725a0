"""Which start of the training the page Locate looks at: a resume repeats steps."""

from __future__ import annotations

from typing import Final

import streamlit as st

from sdc_guard.store.lineage import LAST_STEP, lineage
from sdc_guard.store.run_file import Attempt
from sdc_guard.store.trace_reader import TraceReader

from .. import address
from ..source import Source, source_of
from ..wording import span_text

KEY: Final = "attempt"
_OF_INCIDENT: Final = """
    SELECT max(attempt) FROM every.incidents WHERE opened = $opened AND rank = $rank
"""


def default(newest: TraceReader, incident: str | None) -> int | None:
    """The attempt that raised the incident of this key, or else the newest; None without any.

    Args:
        newest: reads the run as it is now.
        incident: as `records.Incident.key`; what is none counts as none.
    """
    attempts = newest.run_file.attempts
    if not attempts:
        return None
    found = _of_incident(newest, incident) if incident and len(attempts) > 1 else None
    known = {attempt.attempt for attempt in attempts}
    return found if found in known else attempts[-1].attempt


def reader_of(source: Source, newest: TraceReader) -> TraceReader:
    """A reader of the run as it was during the attempt that the address asks for.

    Args:
        source: of the run.
        newest: its reader.
    """
    attempts = newest.run_file.attempts
    if len(attempts) < 2:
        return newest
    asked = st.query_params.get(KEY)
    known = {str(attempt.attempt): attempt.attempt for attempt in attempts}
    attempt = known.get(str(asked)) or default(newest, st.query_params.get("incident"))
    if attempt == attempts[-1].attempt:
        return newest
    return source_of(source.location, attempt).reader()


def control(newest: TraceReader) -> None:
    """The choice; none where the training was started once."""
    attempts = newest.run_file.attempts
    if len(attempts) < 2:
        return
    first = default(newest, st.query_params.get("incident"))
    names = {str(one.attempt): _name(one, attempts[-1]) for one in reversed(attempts)}
    address.choice(
        "Attempt", KEY, list(names), width=230, default=str(first), shown=lambda x: names[x]
    )


def note(reader: TraceReader, newest: TraceReader) -> str:
    """What is shown of a run that was started more than once; empty for another."""
    attempts = newest.run_file.attempts
    if len(attempts) < 2:
        return ""
    asked = st.query_params.get(KEY)
    parts = []
    if asked and all(str(one.attempt) != asked for one in attempts):
        parts.append(f"There is no attempt {asked} in this run.")
    spans = lineage(attempts, reader.attempt)
    told = [f"steps {_span(first, end)} of attempt {number}" for number, first, end in spans]
    parts.append(f"Shown: {', '.join(told)}.")
    later = [one for one in attempts if one.attempt > spans[-1][0]]
    if later:
        again = min(one.first_step for one in later)
        parts.append(f"A later attempt began again at step {again:,}: that is not shown here.")
    return " ".join(parts)


def _span(first: int, end: int) -> str:
    return f"from {first:,} on" if end == LAST_STEP else span_text(first, end - 1)


def _name(one: Attempt, newest: Attempt) -> str:
    which = ", newest" if one is newest else ""
    return f"{one.attempt}: from step {one.first_step:,}{which}"


def _of_incident(newest: TraceReader, key: str) -> int | None:
    opened, _, rank = key.partition(".")
    numbers = (opened, rank or "0")
    if not all(text.isascii() and text.isdigit() and len(text) <= 9 for text in numbers):
        return None
    asked = {"opened": int(opened), "rank": int(numbers[1])}
    found: int | None = newest.rows(_OF_INCIDENT, asked)[0][0]
    return found
