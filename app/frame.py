"""What surrounds every page: title, navigation, the state of the recording, and errors."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import streamlit as st

from sdc_guard.errors import SdcGuardError

from .queries import newest_step
from .records import Newest
from .source import Source, current_source
from .wording import age_text, plain, utc_text

_LIVE_SECONDS = 2
_QUIET_SECONDS = 60.0
_VIEWS = Path(__file__).parent / "views"
# a file: the browser would fetch a symbol given by name from a web site
_ICON = str(Path(__file__).parent / "icon.svg")


def show() -> None:
    """Render the page that the address asks for."""
    st.set_page_config(page_title="SDC Guard", page_icon=_ICON, layout="wide")
    page = st.navigation(
        [
            st.Page(_VIEWS / "incidents.py", title="Incidents", default=True),
            st.Page(_VIEWS / "timeline.py", title="Timeline", url_path="timeline"),
            st.Page(_VIEWS / "locate.py", title="Locate", url_path="locate"),
        ],
        position="top",
    )
    try:
        source = current_source()
        _header(source)
        page.run()
    except SdcGuardError as error:
        _error_line(str(error))
    except duckdb.Error as error:
        _error_line(f"the trace cannot be read: {str(error).splitlines()[0]}")


def _header(source: Source) -> None:
    # taken before anything is read: what is published from here on is news to the next tick
    st.session_state["shown"] = source.version()
    with st.container(horizontal=True, vertical_alignment="center"):
        live = st.toggle(
            "Live",
            value=True,
            key="live",
            help="Look for news every 2 s. Switch it off to keep a chart as it is.",
        )
        st.fragment(run_every=_LIVE_SECONDS if live else None)(_status_line)(str(source.run))
    name = source.reader().run_file.name
    asked = st.query_params.get("run", name)
    if asked != name:
        st.warning(f"The link is about the run {plain(asked)}; shown is {plain(name)}.")
    else:
        st.query_params["run"] = name


def _status_line(run: str) -> None:
    """The state of the recording; starts the whole page anew when there is news."""
    source = current_source()
    if st.session_state.get("live") and source.version() != st.session_state.get("shown"):
        st.rerun()
    try:
        reader = source.reader()
        newest = newest_step(reader)
    except (SdcGuardError, duckdb.Error):
        st.caption("Waiting for the run; this page looks again by itself.")
        return
    parts = [f"Run **{plain(reader.run_file.name)}** in {plain(run)}"]
    if newest is not None:
        parts.append(recording(newest, time.time()))
    st.caption(" · ".join(parts))


def recording(newest: Newest, now: float) -> str:
    """The state of the recording in words, at the moment `now` (seconds since the epoch)."""
    if newest.time is None:
        return f"newest step {newest.step:,}{': ended' if newest.ended else ''}"
    quiet = now - newest.time > max(_QUIET_SECONDS, 5 * (newest.seconds or 0.0))
    if not newest.ended and not quiet:
        return f"recording, newest step {newest.step:,}"
    age = f"{age_text(now - newest.time)} ago ({utc_text(newest.time)})"
    return f"newest step {newest.step:,}, {age}: {'ended' if newest.ended else 'ended, or stalled'}"


def _error_line(text: str) -> None:
    st.error(plain(text), icon=":material/error:")
