"""The table of all runs shown: the state of each, and the way to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from .fleet import Fleet, Run
from .frame import choose
from .records import Newest, is_quiet
from .source import CHOSEN, given_runs
from .summary import Summary, summaries
from .verdict import SYMBOLS
from .wording import age_text, count

_SECONDS_A_LOOK = 1.5  # of reading, before the page goes on
_LIVE_SECONDS = 5
# pixels: the sentence has what is left
_WIDTHS = {
    name: st.column_config.TextColumn(width=width)
    for name, width in (("state", 90), ("first bad step", 105), ("newest step", 95))
} | {"what is known": st.column_config.TextColumn(width="large")}


def fleet_table() -> None:
    """All runs in a table that brings itself up to date; nothing where there is one alone."""
    fleet = given_runs()
    if len(fleet.runs) < 2:
        return
    st.subheader(f"{count(len(fleet.runs), 'run')}", anchor=False)
    live = st.session_state.get("live", True)
    st.fragment(run_every=_LIVE_SECONDS if live else None)(_table)(fleet)


def _table(fleet: Fleet) -> None:
    found = summaries().of(fleet.runs, _SECONDS_A_LOOK)
    names = [run.name for run in fleet.runs]
    chosen = str(st.session_state.get(CHOSEN))
    key = f"fleet {chosen} {len(names)}"
    st.dataframe(
        table(fleet.runs, found, time.time()),
        hide_index=True,
        key=key,
        on_select=lambda: _pick(key, names),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [names.index(chosen)] if chosen in names else []}},
        column_config=_WIDTHS,
    )
    unread = sum(summary is None for summary in found)
    if unread:
        st.caption(f"{count(unread, 'run')} not read yet; they are read in turn.")
    if st.session_state.pop("fleet picked", False):
        st.rerun()


def table(runs: Sequence[Run], found: Sequence[Summary | None], now: float) -> dict[str, list[str]]:
    """The columns, a row per run in the order given; `now` is in seconds since the epoch."""
    newest = [None if summary is None else summary.newest for summary in found]
    return {
        "state": ["… not read" if x is None else f"{SYMBOLS[x.state]} {x.state}" for x in found],
        "run": [run.name for run in runs],
        "first bad step": [
            "–" if x is None or x.first_bad is None else f"{x.first_bad:,}" for x in found
        ],
        "newest step": ["–" if x is None else f"{x.step:,}" for x in newest],
        "recorded": ["–" if x is None else age(x, now) for x in newest],
        "what is known": ["" if x is None else _beside(x) for x in found],
    }


def _beside(summary: Summary) -> str:
    """The headline without the state, which stands in the same line."""
    state, colon, rest = summary.headline.partition(": ")
    known = state.removesuffix(" so far").lower() == summary.state
    return rest[:1].upper() + rest[1:] if colon and known else summary.headline


def age(newest: Newest, now: float) -> str:
    """How long ago the newest step was recorded, and whether that is all."""
    if newest.time is None:
        return "ended" if newest.ended else "–"
    ago = f"{age_text(now - newest.time)} ago"
    if newest.ended:
        return f"{ago}, ended"
    return f"{ago}, ended, or stalled" if is_quiet(newest, now) else f"{ago}, recording"


def _pick(key: str, names: Sequence[str]) -> None:
    rows = st.session_state[key]["selection"]["rows"]
    if rows and rows[0] < len(names):
        choose(names[rows[0]])
        st.session_state["fleet picked"] = True  # the page, too, is about another run now
