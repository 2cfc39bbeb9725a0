"""The pages, and links between them that keep what the reader looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import streamlit as st

_VIEWS: Final = Path(__file__).parent / "views"

# what an address may say: the run, and what of it is looked at
RUN_KEY: Final = "run"
ABOUT_A_RUN: Final = ("incident", "step", "layer", "rank", "attempt", "session")
EMPTY_AT_FIRST: Final = ("step", "layer")  # widgets with these keys begin without a value


@dataclass(frozen=True)
class View:
    """A page: the name of its file and of its address, its title and its icon."""

    name: str
    title: str
    icon: str


PAGES: Final = (
    View("incidents", "Incidents", ":material/crisis_alert:"),
    View("timeline", "Timeline", ":material/timeline:"),
    View("locate", "Locate", ":material/my_location:"),
    View("bisect", "Bisect", ":material/account_tree:"),
    View("act", "Act", ":material/healing:"),
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


def link(name: str, label: str, **changes: str | int | None) -> None:
    """A link to a page, with the address's query as `kept` has it; none to a page there is not."""
    view = next((view for view in available() if view.name == name), None)
    if view is not None:
        st.page_link(
            f"views/{view.name}.py", label=label, icon=view.icon, query_params=kept(**changes)
        )
