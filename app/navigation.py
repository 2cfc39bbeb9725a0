"""The pages, and links between them that keep what the reader looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import streamlit as st

from .address import RUN_KEY

_VIEWS: Final = Path(__file__).parent / "views"

# what an address may say: the run, and what of it is looked at
ABOUT_A_RUN: Final = ("incident", "step", "layer", "rank", "attempt", "session")


@dataclass(frozen=True)
class View:
    """A page: the name of its file and of its address, its title, its question and its icon."""

    name: str
    title: str
    question: str
    icon: str


PAGES: Final = (
    View("incidents", "Incidents", "Is there an incident?", ":material/crisis_alert:"),
    View("timeline", "Timeline", "When did it start?", ":material/timeline:"),
    View("locate", "Locate", "Which layer and rank?", ":material/my_location:"),
    View("bisect", "Bisect", "Which checkpoint?", ":material/account_tree:"),
    View("act", "Act", "What now?", ":material/healing:"),
)


def available() -> tuple[View, ...]:
    """The pages there are in this installation, in the order of their questions."""
    return tuple(view for view in PAGES if (_VIEWS / f"{view.name}.py").is_file())


def pages() -> list[st.Page]:
    """The pages for `st.navigation`; the first is at the address itself."""
    return [
        st.Page(
            _VIEWS / f"{view.name}.py",
            title=view.title,
            url_path="" if view is PAGES[0] else view.name,
            default=view is PAGES[0],
        )
        for view in available()
    ]


def kept(**changes: str | int | None) -> dict[str, str]:
    """The address's query, with these values changed; None takes one out."""
    query = {
        key: str(st.query_params[key])
        for key in (RUN_KEY, *ABOUT_A_RUN)
        if st.query_params.get(key)
    }
    query.update({key: str(value) for key, value in changes.items() if value not in (None, "")})
    return {key: value for key, value in query.items() if changes.get(key, value) is not None}


def question(title: str) -> str:
    """What the page of this title answers."""
    return next(view.question for view in PAGES if view.title == title)


def link(name: str, label: str = "", **changes: str | int | None) -> None:
    """A link to a page, with the address's query as `kept` has it; none to a page there is not.

    Args:
        name: of the page.
        label: of the link; without one, the page's question.
        changes: of the query.
    """
    view = next((view for view in available() if view.name == name), None)
    if view is not None:
        st.page_link(
            f"views/{view.name}.py",
            label=label or view.question,
            icon=view.icon,
            query_params=kept(**changes),
        )


def onward(here: str, step: int | None = None, **changes: str | int | None) -> None:
    """A line of links to the other pages that say more about what is looked at.

    Args:
        here: the page that the links stand on.
        step: that they are about; None leaves the address's.
        changes: of the query: layer, rank, incident.
    """
    with st.container(horizontal=True):
        for view in available():
            if view.name in (here, PAGES[0].name):
                continue
            label = f"Step {step:,} on the timeline" if step is not None else ""
            asked = changes if step is None else {"step": step, **changes}
            link(view.name, label if view.name == "timeline" else "", **asked)
