"""The answer that each page begins with: the state by colour, by sign and by word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from .verdict import SYMBOLS, State
from .wording import plain

_BOXES = {"clean": st.success, "suspect": st.warning, "corrupt": st.error, "unknown": st.info}


def box(state: State, sentence: str, reasons: Sequence[str] = (), *, signed: bool = True) -> None:
    """The answer in a sentence, and what it rests on.

    Args:
        state: its colour and sign.
        sentence: the answer, as text.
        reasons: a sentence each, as text.
        signed: False leaves the sign out, where nothing is judged.
    """
    sign = f"{SYMBOLS[state]} " if signed else ""
    lines = [f"**{sign}{plain(sentence)}**", *(f"- {plain(reason)}" for reason in reasons)]
    _BOXES[state](lines[0] + ("\n\n" + "\n".join(lines[1:]) if reasons else ""))


def figures(shown: Mapping[str, tuple[str, str]]) -> None:
    """A row of cards: what it is, to its value and a note below it ("" for none).

    Of four two stay together where there is no room for all.
    """
    cards = list(shown.items())
    together = 2 if len(cards) == 4 else len(cards)
    with st.container(horizontal=True):
        for first in range(0, len(cards), together):
            with st.container(horizontal=True, width="stretch"):
                for label, (value, note) in cards[first : first + together]:
                    _card(label, value, note)


def _card(label: str, value: str, note: str) -> None:
    st.metric(
        label,
        value,
        border=True,
        width="stretch",
        delta=note or None,
        delta_color="off",
        delta_arrow="off",
    )
