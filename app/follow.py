"""A page that shows itself anew when something that is made apart from it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import streamlit as st

_EVERY: Final = 1.0  # seconds


def follow(is_news: Callable[[], bool]) -> None:
    """Look every second, and run the page again when there is news.

    Args:
        is_news: whether it is there.
    """

    def look() -> None:
        if is_news():
            st.rerun()

    st.fragment(run_every=_EVERY)(look)()
