"""Who may see the pages: where a token is asked for, whoever has it."""

from __future__ import annotations

import hmac
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

import streamlit as st

from sdc_guard.errors import UsageError
from sdc_guard.hosts import TOKEN_VARIABLE, is_loopback

from . import ticket

_TRIES: Final = 5  # wrong ones in a row, of all browsers together
_SECONDS_A_TRY: Final = 10.0  # after which one more may be wrong

Answer = Literal["admitted", "wrong", "wait"]

_WORDS: Final[dict[Answer, str]] = {
    "wrong": "This is not the token.",
    "wait": f"Too many wrong tokens: wait {_SECONDS_A_TRY:.0f} s and try again.",
}


class Admission:
    """Compares tokens with the right one, and few wrong ones in a row.

    Wrong tries are counted for the whole server: a guesser may open as many sessions as he
    likes. Whoever was admitted before is not asked again.

    Args:
        token: the right one.
        clock: seconds, never going back.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token.encode()
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(_TRIES)
        self._counted = clock()

    def tried(self, given: str) -> Answer:
        """What becomes of a try; while "wait" is answered nothing is compared."""
        with self._lock:
            now = self._clock()
            self._left = min(self._left + (now - self._counted) / _SECONDS_A_TRY, _TRIES)
            self._counted = now
            if self._left < 1:
                return "wait"
            if hmac.compare_digest(given.encode(), self._token):
                return "admitted"
            self._left -= 1
            return "wrong"


@st.cache_resource(show_spinner=False)
def _admission(token: str) -> Admission:
    return Admission(token)


def admitted() -> bool:
    """Whether this browser session may see anything; shows the page that asks where it may not.

    A token in the page's address counts, and is taken out of it. A tab that was admitted has a
    ticket for its next reload.

    Raises:
        UsageError: the server listens elsewhere than on this machine, and no token is set.
    """
    given = st.query_params.pop("token", None)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        address = st.get_option("server.address")
        if address and not is_loopback(address):
            raise UsageError(
                "nothing is shown to other machines without a token",
                where=str(address),
                next_step=f"set {TOKEN_VARIABLE}, or start with sdc-guard dashboard --token auto",
            )
        return True
    if st.session_state.get("admitted"):
        ticket.keep(token)
        return True
    gate = _admission(token)
    answer = gate.tried(given) if given else None
    if answer is None and ticket.presented(token):
        answer = "admitted"
    if answer != "admitted" and (typed := _asked()):
        answer = gate.tried(typed)
    if answer == "admitted":
        st.session_state["admitted"] = True
        st.rerun()
    if answer is not None:
        st.error(_WORDS[answer], icon=":material/lock:")
    return False


def _asked() -> str | None:
    """The token that was typed, where one was."""
    st.subheader("SDC Guard", anchor=False)
    with st.form("token form", width=440, clear_on_submit=True):
        st.write(
            "These pages are shown to whoever has the token: it was set, or printed, where the "
            "dashboard was started."
        )
        given = st.text_input("Token", type="password", autocomplete="off")
        sent = st.form_submit_button("Show the runs")
    return given if sent else None
