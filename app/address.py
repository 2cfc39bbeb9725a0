"""What the page's address says is looked at, and the controls that show and change it.

The address alone decides. A widget bound to it by Streamlit would keep its value when another
run is chosen, and let nobody else take it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import streamlit as st

RUN_KEY: Final = "run"
_CHANGED, _KEPT, _PAGE = "address changed", "address kept", "page shown"
# pixels: of a choice's width, of a letter, and of what stands beside the name
_LEAST_WIDE, _MOST_WIDE, _LETTER, _BESIDE = 260, 560, 8, 90
_ANY: Final = "none; type parts of a name"
_ON_ITS_WAY: Final = 5.0  # seconds in which a browser may still ask with the address before


def put(**changes: str | int | None) -> None:
    """Change these values of the address; None takes one out. For callbacks."""
    before = st.query_params.to_dict()
    changed = {name: str(value) for name, value in changes.items() if value not in (None, "")}
    after = {k: v for k, v in before.items() if k not in changes} | changed
    st.query_params.from_dict(after)
    st.session_state[_CHANGED] = (before, after, time.monotonic())
    st.session_state[_KEPT] = after


def settle(page: str) -> None:
    """Mend the address of a page that is about to be drawn.

    A look for news that the browser sent before it heard of a change asks with the address as it
    was: the change stands. The navigation bar leaves everything out: what was looked at stays.

    Args:
        page: its title.
    """
    now = st.query_params.to_dict()
    before, after, changed = st.session_state.get(_CHANGED, ({}, {}, 0.0))
    another = page != st.session_state.get(_PAGE, page)
    if another and RUN_KEY not in now:
        now = {**st.session_state.get(_KEPT, {}), **now}
    elif not another and now == before and time.monotonic() - changed < _ON_ITS_WAY:
        now = after
    if now != st.query_params.to_dict():
        st.query_params.from_dict(now)
    st.session_state[_KEPT], st.session_state[_PAGE] = now, page


def number(label: str, name: str, *, width: int = 160, placeholder: str = "") -> int | None:
    """A field for a whole number that the address has under this name."""
    text = str(st.query_params.get(name, ""))
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
    _show(name, value)
    st.number_input(
        label,
        value=None,
        min_value=0,
        step=1,
        key=name,
        on_change=_taken,
        args=(name,),
        width=width,
        placeholder=placeholder,
    )
    return value


def choice(
    label: str,
    name: str,
    options: Sequence[str],
    *,
    width: int,
    optional: bool = False,
    default: str | None = None,
    shown: Callable[[str], str] = str,
    known: Sequence[str] | None = None,
    found: Callable[[str], str | None] | None = None,
    about: str | None = None,
) -> str | None:
    """A choice that the address has under this name; the default, or none, without it.

    Args:
        label: what stands above.
        name: of the choice in the address.
        options: what there is.
        width: in pixels.
        optional: whether nothing may be chosen, as is the case at first.
        default: what is chosen at first; by default the first option.
        shown: what stands for an option.
        known: all that the address may say, where the options are but some of it.
        found: takes what somebody typed, or chose, to what is meant; where it gives None, the
            choice stays as it was. Without it, nothing but an option can be typed.
        about: told by the field's help.
    """
    asked = st.query_params.get(name)
    first = None if optional or not options else options[0]
    first = default if default in options else first
    value = asked if asked in (known or options) else first
    _show(name, value)
    missing = optional and asked and value is None
    st.selectbox(
        label,
        options,
        index=None if optional else 0,
        key=name,
        on_change=_taken,
        args=(name, first, found),
        format_func=shown,
        accept_new_options=found is not None,
        # Enter takes an option that is like what was typed: not a layer for its likeness
        filter_mode="fuzzy" if found is None else "contains",
        help=about,
        placeholder=f"{asked} is not in this run" if missing else "none" if found is None else _ANY,
        width=width,
    )
    return value


def room(names: Sequence[str]) -> int:
    """Pixels in which the longest of these names is read whole, in a choice; within bounds."""
    letters = max(map(len, names), default=0)
    return min(max(_LEAST_WIDE, _LETTER * letters + _BESIDE), _MOST_WIDE)


def _show(name: str, value: str | int | None) -> None:
    # set only where it differs: a field that somebody types into is left alone
    if name not in st.session_state or st.session_state[name] != value:
        st.session_state[name] = value


def _taken(
    name: str,
    without: str | None = None,
    found: Callable[[str], str | None] | None = None,
) -> None:
    value = st.session_state[name]
    if found is not None and value is not None:
        value = found(value)
        if value is None:
            return
    put(**{name: None if value is None or value == without else value})
