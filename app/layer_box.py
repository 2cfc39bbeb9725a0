"""The choice of a layer, out of a few or of thousands.

A browser takes a quarter of a second for a list of five thousand names, each time that one is
chosen. Of so many the box lists those that alerts name and the model's first ones; the others are
found by parts of their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import streamlit as st

from sdc_guard.store.trace_reader import TraceReader

from . import address, queries
from .source import current_run
from .wording import count

MOST_LISTED: Final = 200  # names in the box
_ALERTED: Final = 100  # of those, at most so many that alerts name
_TOLD: Final = 60  # letters of what was typed that are said again
_SEARCH: Final = "layer search"  # in the session: the run, and what was typed
_HELP: Final = (
    "Lists those that alerts name and the first ones. Type parts of a name and press Enter to "
    "find others."
)


def control(reader: TraceReader, names: Sequence[str]) -> str | None:
    """The layer that the address has under its name, or none.

    Args:
        reader: of the run.
        names: of all its layers.
    """
    width = address.room(names)
    if len(names) <= MOST_LISTED:
        return address.choice("Layer", "layer", names, width=width, optional=True)
    return address.choice(
        "Layer",
        "layer",
        _listed(reader, names),
        width=width,
        optional=True,
        known=names,
        found=lambda text: _found(text, names),
        about=_HELP,
    )


def note(names: Sequence[str]) -> str:
    """What became of a search, as text; empty without one."""
    text = _searched()
    if not text:
        return ""
    among = matching(names, text)
    text = text if len(text) <= _TOLD else f"{text[:_TOLD]}…"
    if not among:
        return f"No layer has “{text}” in its name."
    which = "them" if len(among) <= MOST_LISTED else f"{MOST_LISTED} of them"
    return f"“{text}” is in the names of {count(len(among), 'layer')}: the box lists {which}."


def matching(names: Sequence[str], text: str) -> list[str]:
    """The names with each of the text's words in them, in upper or lower case."""
    words = text.casefold().split()
    return [name for name in names if all(word in name.casefold() for word in words)]


def _listed(reader: TraceReader, names: Sequence[str]) -> list[str]:
    """The chosen one, and those that were searched for, or else that alerts name and the first."""
    among = matching(names, text) if (text := _searched()) else []
    if not among:
        known = set(names)
        alerted = (x for x in queries.alerted_layers(reader, _ALERTED) if x in known)
        among = [*alerted, *names[:MOST_LISTED]]
    asked = st.query_params.get("layer")
    chosen = [asked] if asked in names else []
    return list(dict.fromkeys([*chosen, *among]))[:MOST_LISTED]


def _found(text: str, names: Sequence[str]) -> str | None:
    """The layer that what was typed, or chosen, means; None where it could be several or none."""
    st.session_state.pop(_SEARCH, None)
    if text in names:
        return text
    among = matching(names, text)
    if len(among) == 1:
        return among[0]
    if not text.strip():
        return None
    st.session_state[_SEARCH] = (current_run().name, text)
    return None


def _searched() -> str:
    run, text = st.session_state.get(_SEARCH, ("", ""))
    return text if run == current_run().name else ""
