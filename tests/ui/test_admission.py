"""The token: compared before anything is shown, and few wrong ones in a row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import streamlit as st
from hand_made import corrupt_run
from streamlit.testing.v1 import AppTest

import app.source
import app.ticket
from app.admission import Admission
from app.ticket import Tickets
from sdc_guard.hosts import TOKEN_VARIABLE, is_loopback, is_wildcard

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
TOKEN = "quite-a-long-täken"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_right_token_is_admitted_and_nothing_else() -> None:
    gate = Admission(TOKEN, Clock())
    assert gate.tried(TOKEN) == "admitted"
    for wrong in (TOKEN[:-1], TOKEN + " ", ""):
        assert gate.tried(wrong) == "wrong"


def test_after_five_wrong_ones_even_the_right_one_waits_ten_seconds() -> None:
    clock = Clock()
    gate = Admission(TOKEN, clock)
    assert [gate.tried("no") for _ in range(6)] == ["wrong"] * 5 + ["wait"]
    assert gate.tried(TOKEN) == "wait"
    clock.now += 9.9
    assert gate.tried(TOKEN) == "wait"
    clock.now += 0.2
    assert gate.tried("no") == "wrong"
    assert gate.tried(TOKEN) == "wait"
    clock.now += 10.0
    assert [gate.tried(TOKEN) for _ in range(20)] == ["admitted"] * 20


def test_a_quiet_day_saves_up_no_more_than_five_tries() -> None:
    clock = Clock()
    gate = Admission(TOKEN, clock)
    clock.now += 86_400
    assert [gate.tried("no") for _ in range(6)] == ["wrong"] * 5 + ["wait"]


def test_a_day_of_guessing_is_a_try_in_ten_seconds() -> None:
    clock = Clock()
    gate = Admission(TOKEN, clock)
    compared = 0
    for _ in range(86_400):
        compared += gate.tried("no") == "wrong"
        clock.now += 1.0
    assert compared <= 8_640 + 5


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("LOCALHOST", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.7", False, False),
        ("localhost.example.com", False, False),
        ("127.0.0.1.example.com", False, False),
        ("", False, False),
    ],
)
def test_what_reaches_this_machine_only(host: str, loopback: bool, wildcard: bool) -> None:
    assert (is_loopback(host), is_wildcard(host)) == (loopback, wildcard)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., AppTest]:
    """opened(**query): the first page, where a token is set and each look at the runs is noted."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    monkeypatch.setattr(sys, "argv", ["main.py", str(corrupt_run(tmp_path / "hidden"))])
    st.cache_resource.clear()

    def page(**query: str) -> AppTest:
        tested = AppTest.from_file(str(MAIN), default_timeout=30)
        for name, value in query.items():
            tested.query_params[name] = value
        return tested.run()

    return page


def seen(tested: AppTest) -> str:
    assert not tested.exception, tested.exception
    parts = [*tested.error, *tested.warning, *tested.markdown, *tested.caption, *tested.subheader]
    return "\n".join(str(part.value) for part in parts)


def test_nothing_is_read_before_the_token_is_right(
    opened: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a run was looked at")

    with monkeypatch.context() as patched:
        patched.setattr(app.source, "runs_given", read)
        patched.setattr(app.source.Source, "version", read)
        tested = opened()
        assert "whoever has the token" in seen(tested)
        tested.text_input[0].input("wrong")
        tested.button[0].click().run()
        assert "This is not the token." in seen(tested)
        assert "hidden" not in seen(tested)
        assert "run" not in tested.query_params
    tested.text_input[0].input(TOKEN)
    tested.button[0].click().run()
    assert "✖ Corrupt" in seen(tested)
    assert not tested.text_input
    tested.run()  # a session is asked once
    assert "✖ Corrupt" in seen(tested)


def test_a_link_with_the_token_is_accepted_and_the_token_taken_out(
    opened: Callable[..., AppTest],
) -> None:
    tested = opened(token=TOKEN, incident="27")
    assert "✖ Corrupt" in seen(tested)
    assert "token" not in tested.query_params
    assert tested.query_params["incident"] in ("27", ["27"])
    assert TOKEN not in repr(tested.session_state)


def test_a_link_with_a_wrong_token_is_asked_for_another(opened: Callable[..., AppTest]) -> None:
    tested = opened(token="wrong")
    assert "This is not the token." in seen(tested)
    assert len(tested.text_input) == 1
    assert "token" not in tested.query_params


def test_without_a_token_other_machines_get_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["main.py", str(corrupt_run(tmp_path / "hidden"))])
    monkeypatch.setattr(st, "get_option", {"server.address": "0.0.0.0"}.get)
    tested = AppTest.from_file(str(MAIN), default_timeout=30).run()
    assert "without a token" in seen(tested)
    assert "hidden" not in seen(tested)


def test_a_ticket_is_good_once_and_for_a_time() -> None:
    now = [0.0]
    tickets = Tickets(lambda: now[0])
    first, second, third = (tickets.give() for _ in range(3))
    assert len({first, second, third}) == 3
    assert not tickets.take("")
    assert tickets.take(first)
    assert not tickets.take(first)
    now[0] = 11.9 * 3600
    assert tickets.take(second)
    now[0] = 12.1 * 3600
    assert not tickets.take(third)


def test_of_many_tickets_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.ticket, "_MOST", 2)
    tickets = Tickets()
    first, second, third = (tickets.give() for _ in range(3))
    assert [tickets.take(one) for one in (first, second, third)] == [False, True, True]


def test_a_tabs_ticket_is_of_the_token_that_it_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app.ticket._tickets.clear()
    given = app.ticket._tickets("old token").give()
    presented: list[object] = [None, 7, "made up", given]
    monkeypatch.setattr(
        app.ticket, "_mounted", lambda **_: SimpleNamespace(ticket=presented.pop(0))
    )
    assert not any(app.ticket.presented("old token") for _ in range(3))
    presented.append(given)
    assert not app.ticket.presented("new token")
    assert app.ticket.presented("old token")


@pytest.mark.parametrize(("link", "is_shown"), [({}, True), ({"token": "wrong"}, False)])
def test_a_tab_with_a_ticket_is_let_in_unless_its_link_has_a_wrong_token(
    opened: Callable[..., AppTest],
    monkeypatch: pytest.MonkeyPatch,
    link: dict[str, str],
    is_shown: bool,
) -> None:
    monkeypatch.setattr(app.ticket, "presented", lambda _: True)
    tested = opened(**link)
    assert ("✖ Corrupt" in seen(tested)) is is_shown
    assert ("This is not the token." in seen(tested)) is not is_shown


def test_what_is_no_text_is_no_ticket() -> None:
    assert not Tickets().take("\udcff")
