"""A ticket that lets a browser's tab in again after a reload, in place of the token.

It lies in the tab's session storage: no other site or port of this machine reads it, no request
carries it, and it goes with the tab. It is random, is good for one reload, and is forgotten when
the server ends.

Another tab of the same browser asks the tabs that are open, by a channel that only pages of this
very address and port hear. One of them hands over its ticket, and gets a new one from the server.
A cookie would go to whatever else listens on this host: cookies know no ports.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import streamlit as st

_SECONDS: Final = 12 * 3600.0  # a working day; then the token is asked for again
_MOST: Final = 1_000  # tickets; the oldest goes first
_SHOWN: Final = "ticket of this tab"

# Presented once and taken out on the way: a refused one is not tried for ever. Of the tabs that
# offer one the first is asked for it, so that the others keep theirs.
_SCRIPT: Final = """
export default function({ data, parentElement, setTriggerValue }) {
  const name = "sdc-guard ticket";
  const random = () => Array.from(crypto.getRandomValues(new Uint32Array(4))).join("-");
  try {
    parentElement.tickets?.close();
    const channel = parentElement.tickets = new BroadcastChannel(name);
    const me = random();
    if (data.ticket) {
      sessionStorage.setItem(name, data.ticket);
      channel.onmessage = ({ data: said }) => {
        if (said.ask) channel.postMessage({ offer: said.ask, by: me });
        const kept = said.by === me && said.take ? sessionStorage.getItem(name) : null;
        if (!kept) return;
        sessionStorage.removeItem(name);
        channel.postMessage({ give: said.take, ticket: kept });
        setTriggerValue("given", me);
      };
      return () => channel.close();
    }
    const kept = sessionStorage.getItem(name);
    if (kept) {
      sessionStorage.removeItem(name);
      setTriggerValue("ticket", kept);
      return () => channel.close();
    }
    let asked = null;
    channel.onmessage = ({ data: said }) => {
      if (said.offer === me && !asked) {
        asked = said.by;
        channel.postMessage({ take: me, by: asked });
      }
      if (said.give === me) setTriggerValue("ticket", said.ticket);
    };
    parentElement.asked = (parentElement.asked ?? 0) + 1;
    if (parentElement.asked <= 5) channel.postMessage({ ask: me });
    return () => channel.close();
  } catch (error) { /* a browser without storage: the token is asked for at each reload */ }
}
"""
_mounted = st.components.v2.component("sdc_guard_ticket", js=_SCRIPT)


class Tickets:
    """Those given and not used yet, by their hashes.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[bytes, float] = {}

    def give(self) -> str:
        """A new one."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            self._until[_hashed(ticket)] = self._clock() + _SECONDS
            while len(self._until) > _MOST:
                del self._until[next(iter(self._until))]
        return ticket

    def take(self, ticket: str) -> bool:
        """Whether it was given, is not too old and was not used before; it is used now."""
        with self._lock:
            until = self._until.pop(_hashed(ticket), None)
            return until is not None and self._clock() < until


def _hashed(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()


@st.cache_resource(show_spinner=False)
def _tickets(token: str) -> Tickets:  # of the token: one that was changed ends them
    return Tickets()


def presented(token: str) -> bool:
    """Whether the tab has a ticket that lets it in; asks it for one."""
    given = getattr(_mounted(key="ticket asked", data={}, on_ticket_change=_noted), "ticket", None)
    return isinstance(given, str) and _tickets(token).take(given)


def keep(token: str) -> None:
    """Leave a ticket with the tab that was admitted, for its next reload or another tab."""
    if _SHOWN not in st.session_state:
        st.session_state[_SHOWN] = _tickets(token).give()
    _mounted(
        key="ticket kept", data={"ticket": st.session_state[_SHOWN]}, on_given_change=_given_away
    )


def _noted() -> None:
    """The trigger's value is read where the component is mounted."""


def _given_away() -> None:
    """Another tab has it: this one gets a new one as it is drawn."""
    st.session_state.pop(_SHOWN, None)
