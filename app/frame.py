"""What surrounds every page: title, navigation, the choice of the run, and errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import streamlit as st

from sdc_guard.errors import SdcGuardError

from . import address, loading, navigation
from .admission import admitted
from .fleet import Fleet
from .follow import follow
from .queries import newest_step
from .records import Newest, is_quiet
from .source import CHOSEN, Source, current_run, current_source, given_runs, source_of
from .wording import age_text, count, plain, utc_text

_LIVE_SECONDS = 2
_LISTED = 20
# a file: the browser would fetch a symbol given by name from a web site
_ICON = str(Path(__file__).parent / "icon.svg")


def show() -> None:
    """Render the page that the address asks for."""
    st.set_page_config(page_title="SDC Guard", page_icon=_ICON, layout="wide")
    page = st.navigation(navigation.pages(), position="top")
    with errors_told():
        if not admitted():
            return
        address.settle(page.title)
        if _chosen(given_runs()):
            # tabs of several runs and pages are told apart by it
            st.set_page_config(page_title=f"{page.title} · {current_run().name} · SDC Guard")
            _header(current_source(), navigation.question(page.title))
            if page.title in loading.NEEDED_BY and loading.of_server.is_awaited():
                _awaited()
            else:
                page.run()


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """A line in place of what can be expected to fail; a fragment needs one of its own."""
    try:
        yield
    except SdcGuardError as error:
        _error_line(str(error))
    except duckdb.Error as error:
        _error_line(f"the trace cannot be read: {str(error).splitlines()[0]}")
    except OSError as error:
        gone = f"{error.strerror or error}: {error.filename or ''}"
        _error_line(f"a file of the run cannot be read ({gone}); this page tries again")


def _awaited() -> None:
    """In place of a page that needs what is still being loaded."""
    st.info(
        "Loading what reads checkpoints, once after the start of the server: some seconds. "
        "The page is shown here when it is there.",
        icon=":material/hourglass_top:",
    )
    follow(lambda: loading.of_server.is_done)


def _chosen(fleet: Fleet) -> bool:
    """Makes the address's run the session's; tells where there is none of that name."""
    for line in fleet.refused:
        st.warning(plain(line), icon=":material/link_off:")
    asked = st.query_params.get("run")
    if asked is not None and fleet.named(asked) is None:
        if len(fleet.runs) > 1:
            _unknown(asked, fleet)
            return False
        shown = plain(fleet.runs[0].name)
        st.warning(f"The link is about the run {plain(asked)}; shown is {shown}.")
        return True
    name = asked or st.session_state.get(CHOSEN) or fleet.runs[0].name
    run = fleet.named(name) or fleet.runs[0]
    st.session_state[CHOSEN] = run.name
    if run.there:  # else a run that comes into the folder has another name
        st.query_params["run"] = run.name
    return True


def _unknown(asked: str, fleet: Fleet) -> None:
    _error_line(f"there is no run {asked} here; there are {count(len(fleet.runs), 'run')}:")
    for run in fleet.runs[:_LISTED]:
        st.page_link("views/incidents.py", label=plain(run.name), query_params={"run": run.name})
    if len(fleet.runs) > _LISTED:
        st.caption(f"and {len(fleet.runs) - _LISTED:,} more")


def _header(source: Source, question: str) -> None:
    # taken before anything is read: what is published from here on is news to the next tick
    st.session_state["shown"] = source.version()
    fleet = given_runs()
    st.session_state["runs shown"] = _names(fleet)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header(question, anchor=False, width="content")
        _picker(fleet)
        live = st.toggle(
            "Live",
            value=True,
            key="live",
            help="Look for news every 2 s. Switch it off to keep a chart as it is.",
        )
        st.fragment(run_every=_LIVE_SECONDS if live else None)(_status_line)(
            source.location, len(fleet.runs) > 1
        )


def _names(fleet: Fleet) -> tuple[str, ...]:
    return tuple(run.name for run in fleet.runs)


def _picker(fleet: Fleet) -> None:
    if len(fleet.runs) < 2:
        return
    st.session_state["run picker"] = st.session_state[CHOSEN]
    st.selectbox(
        "Run",
        [run.name for run in fleet.runs],
        key="run picker",
        label_visibility="collapsed",
        width=280,
        on_change=lambda: choose(st.session_state["run picker"]),
    )


def choose(name: str) -> None:
    """Look at another run from now on: what was selected was of the run before."""
    address.put(**{**dict.fromkeys(st.query_params), address.RUN_KEY: name})
    st.session_state[CHOSEN] = name


def _status_line(location: str, picked: bool) -> None:
    """The state of the recording; starts the whole page anew when there is news."""
    source = source_of(location)
    if st.session_state.get("live") and (
        source.version() != st.session_state.get("shown")
        or _names(given_runs()) != st.session_state.get("runs shown")
    ):
        st.rerun()
    try:
        reader = source.reader()
        newest = newest_step(reader)
    except (SdcGuardError, duckdb.Error, OSError):
        st.caption("Waiting for the run; this page looks again by itself.")
        return
    # a picker has its name already
    parts = [] if picked else [f"Run **{plain(reader.run_file.name)}**"]
    about = [f"Recorded in {plain(source.run)}."]
    if newest is not None:
        parts.append(recording(newest, time.time()))
        if newest.time is not None:
            about.append(f"Step {newest.step:,} at {utc_text(newest.time)}.")
    st.caption(" · ".join(parts) or "no step is recorded yet", help=" ".join(about))


def recording(newest: Newest, now: float) -> str:
    """The state of the recording in words, at the moment `now` (seconds since the epoch)."""
    if newest.time is None:
        return f"newest step {newest.step:,}{': ended' if newest.ended else ''}"
    if not newest.ended and not is_quiet(newest, now):
        return f"recording, newest step {newest.step:,}"
    age = f"{age_text(now - newest.time)} ago"
    return f"newest step {newest.step:,}, {age}: {'ended' if newest.ended else 'ended, or stalled'}"


def _error_line(text: str) -> None:
    st.error(plain(text), icon=":material/error:")
