"""Links between the pages: what they keep of the address, and what they change."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from app import navigation
from app.navigation import ABOUT_A_RUN, PAGES, kept, link, onward, question

ALL = {name: f"{place}" for place, name in enumerate(("run", *ABOUT_A_RUN))}


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was linked to, from a page whose address says everything, and something else."""
    found: list[dict[str, Any]] = []

    def page_link(page: str, **said: Any) -> None:
        found.append({"page": page, **said})

    fake = SimpleNamespace(
        query_params={**ALL, "window": "9", "token": "x"},
        page_link=page_link,
        container=lambda **_: contextlib.nullcontext(),
    )
    monkeypatch.setattr(navigation, "st", fake)
    return found


def test_a_link_keeps_what_is_looked_at_and_nothing_else(links: list[dict[str, Any]]) -> None:
    assert set(ABOUT_A_RUN) == {"incident", "step", "layer", "rank", "attempt", "session"}
    assert kept() == ALL
    link("bisect")
    assert links[0]["page"] == "views/bisect.py"
    assert links[0]["label"] == question("Bisect") == "Which checkpoint?"
    assert links[0]["query_params"] == ALL


def test_a_link_changes_what_it_is_about(links: list[dict[str, Any]]) -> None:
    assert kept(step=0, layer="w") == {**ALL, "step": "0", "layer": "w"}
    without = {name: value for name, value in ALL.items() if name != "rank"}
    assert kept(rank=None) == without
    assert kept(rank="") == ALL
    navigation.st.query_params.clear()
    assert kept(step=3, rank=None) == {"step": "3"}


def test_a_page_that_is_not_there_is_not_linked_to(links: list[dict[str, Any]]) -> None:
    link("no such")
    assert links == []


def test_onward_leads_to_the_other_pages_but_the_first(links: list[dict[str, Any]]) -> None:
    onward("locate", 1_027, layer="w")
    assert [one["page"] for one in links] == [
        "views/timeline.py", "views/bisect.py", "views/act.py",
    ]  # fmt: skip
    assert [one["label"] for one in links] == [
        "Step 1,027 on the timeline", "Which checkpoint?", "What now?",
    ]  # fmt: skip
    assert all(one["query_params"] == {**ALL, "step": "1027", "layer": "w"} for one in links)
    links.clear()
    onward("incidents", None, rank=3)
    assert [one["label"] for one in links] == [view.question for view in PAGES[1:]]
    assert all(one["query_params"] == {**ALL, "rank": "3"} for one in links)
