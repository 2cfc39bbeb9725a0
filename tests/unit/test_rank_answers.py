"""Answers of several ranks: a majority blames, two only detect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.rank_answers import RankAnswers, told_value


def value(environment: str = "e", answer: str = "a") -> int:
    return told_value([(environment, answer)])


def test_equal_answers_are_nothing() -> None:
    assert RankAnswers(0).judge(0, dict.fromkeys(range(4), value())) == []


def test_a_majority_names_the_rank() -> None:
    values = dict.fromkeys(range(4), value()) | {2: value(answer="b")}
    (alert,) = RankAnswers(0).judge(7, values)
    assert (alert.step, alert.severity, alert.detail["ranks"]) == (7, "proven", [2])
    assert [RankAnswers(rank).judge(7, values) == [] for rank in range(4)] == [
        False, True, False, True,
    ]  # fmt: skip


def test_two_only_detect() -> None:
    (alert,) = RankAnswers(0).judge(0, {0: value(), 1: value(answer="b")})
    assert (alert.severity, alert.detail["ranks"]) == ("suspect", [0, 1])
    assert "without a majority" in alert.detail["text"]


def test_other_kinds_of_device_or_settings_are_not_compared() -> None:
    values = {0: value(), 1: value(), 2: value("f", "b"), 3: value("g", "c")}
    assert RankAnswers(0).judge(0, values) == []


def test_what_stays_is_one_alert() -> None:
    judge = RankAnswers(0)
    values = dict.fromkeys(range(3), value()) | {2: value(answer="b")}
    assert len(judge.judge(0, values)) == 1
    assert judge.judge(500, values) == []
    assert judge.judge(1000, dict.fromkeys(range(3), value())) == []
    assert len(judge.judge(1500, values)) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_only_a_strict_majority_of_three_or_more_blames(answers: list[int]) -> None:
    values = {rank: value(answer=str(answer)) for rank, answer in enumerate(answers)}
    alerts = RankAnswers(0).judge(0, values)
    largest = max(answers.count(answer) for answer in answers)
    if largest == len(answers):
        assert alerts == []
        return
    (alert,) = alerts
    blames = 2 * largest > len(answers) and len(answers) > 2
    assert (alert.severity == "proven") == blames
    if blames:
        usual = next(answer for answer in answers if answers.count(answer) == largest)
        assert alert.detail["ranks"] == [r for r, answer in enumerate(answers) if answer != usual]
    else:
        assert alert.detail["ranks"] == list(range(len(answers)))
