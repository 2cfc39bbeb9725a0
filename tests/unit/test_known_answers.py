"""What is said of answers that differ: how often, how much, and which of them may be right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.answers import Answer, Known, differing, relative_difference, size_in_words
from sdc_guard.detect.known_answer import REPEATS, AnswerWatch, recorded_alert

KNOWN = Known(100, (200, 300))
NUMBERS = (2.5, 2.25, 0.5, 0.25)


def answer(*tail: int, known: tuple[int, ...] = (100, 200, 300), factor: float = 1.0) -> Answer:
    """An answer whose outputs and gradients have these digests."""
    rows = [[value, 1, 2] for value in (*known, *(tail or (7, 8, 9)))]
    return Answer(np.array(rows, dtype=np.int64), np.array(NUMBERS) * factor)


A, B, C = answer(), answer(7, 8, 10, factor=1 + 1e-3), answer(7, 8, 11)
WRONG = answer(known=(100, 201, 300))
CONSTANT = answer(5, 5, 9)


def follow(answers: list[Answer], every: int = 500) -> tuple[AnswerWatch, list[Alert]]:
    """What a watch says to answers in this order; repeats come when it asks for them."""
    watch, alerts, step, left = AnswerWatch("cpu", KNOWN), [], 0, iter(answers)
    for given_answer in left:
        told, again = watch.take(step, given_answer)
        alerts += told
        while again:
            told, more = watch.take(step, next(left))
            alerts += told
            again += more - 1
        step += every
    return watch, alerts


def test_the_first_answer_counts_once_it_came_twice() -> None:
    watch = AnswerWatch("cpu", KNOWN)
    assert watch.take(0, A) == ([], 1)
    assert watch.reference is None
    assert watch.take(0, A) == ([], 0)
    assert watch.reference is A
    assert watch.confirmed == 2
    assert watch.take(500, A) == ([], 0)
    assert watch.confirmed == 3


@pytest.mark.parametrize(
    ("again", "course"),
    [((A, A), "intermittent"), ((B, B), "persistent"), ((C, A), "changing"), ((C, C), "changing")],
)
def test_an_odd_answer_is_repeated_and_its_course_told(
    again: tuple[Answer, Answer], course: str
) -> None:
    watch, alerts = follow([A, A, A, B, *again])
    (alert,) = alerts
    assert (alert.detector, alert.severity, alert.step) == ("known_answer", "proven", 1000)
    assert alert.detail["course"] == course
    assert alert.detail["usual_given"] == 3
    assert alert.detail["parts"] == ["gradients"]
    assert "two different answers" in alert.detail["text"]
    assert watch.reference is A
    alert.detail_json()


def test_an_odd_answer_that_stays_is_one_alert_and_its_end_another_beginning() -> None:
    _, alerts = follow([A, A, B, B, B, B, B, A, B, A, A])
    assert [(alert.step, alert.detail["course"]) for alert in alerts] == [
        (500, "persistent"),
        (2500, "intermittent"),
    ]


def test_the_majority_of_the_first_answers_is_the_reference() -> None:
    watch, alerts = follow([A, B, B, B, B])
    assert [alert.detail["course"] for alert in alerts] == ["persistent"]
    assert (alerts[0].detail["usual_given"], alerts[0].detail["given"]) == (1, 3)
    assert watch.reference is B
    assert watch.confirmed == 4


def test_a_known_part_is_wrong_without_any_reference() -> None:
    watch, alerts = follow([WRONG, WRONG, WRONG, WRONG])
    assert watch.reference is None
    assert [alert.detail["kind"] for alert in alerts] == ["wrong"]
    assert alerts[0].detail["parts"] == ["product of integers 1"]
    _, alerts = follow([WRONG, A, A, A, A])
    assert [alert.detail["course"] for alert in alerts] == ["intermittent"]


def test_a_constant_output_is_an_alarm_without_any_reference() -> None:
    watch, alerts = follow([CONSTANT, CONSTANT, CONSTANT])
    assert watch.reference is None
    assert [(alert.severity, alert.detail["kind"]) for alert in alerts] == [("proven", "constant")]
    assert "constants" in alerts[0].detail["text"]


# "same batch, loss shifted by 1e-5, by 1e-3": what is said of it
@pytest.mark.parametrize(
    ("shift", "words"),
    [
        (1e-7, "order of summation"),
        (1e-5, "order of summation"),
        (1e-3, "TF32"),
        (0.1, "more than rounding"),
    ],
)
def test_a_recorded_answer_that_differs_is_told_by_its_size(shift: float, words: str) -> None:
    theirs = answer(7, 8, 10, factor=1 + shift)
    source = {"host": "other", "device_id": None}
    alert = recorded_alert(3, "cpu", A, theirs, KNOWN, source)
    assert alert.severity == "suspect"
    assert words in alert.detail["size"]
    assert words in alert.detail["text"]
    assert "do not say which" in alert.detail["text"]


def test_what_only_bits_show_is_said_so() -> None:
    assert differing(A, C, KNOWN) == ("gradients",)
    assert "other bits differ" in size_in_words(relative_difference(A.numbers, C.numbers))


@given(st.lists(st.sampled_from([A, B, C, WRONG, CONSTANT]), max_size=40))
def test_no_alert_without_a_cause_and_none_after_equal_answers(answers: list[Answer]) -> None:
    # whatever a device does in the end, no more is asked for than is bounded
    watch, alerts = AnswerWatch("cpu", KNOWN), []
    for step, given_answer in enumerate(answers):
        told, again = watch.take(step, given_answer)
        assert again <= REPEATS
        alerts += told
    if len({one.hash for one in answers}) == 1 and answers[0] in (A, B, C):
        assert alerts == []
    for alert in alerts:
        assert alert.severity == "proven"
        alert.detail_json()
    if watch.reference is not None:
        assert not watch.reference.wrong(KNOWN)
        assert not watch.reference.is_constant


FLOATS = st.floats(width=64)


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=6))
def test_the_relative_difference_is_symmetric_and_zero_only_for_equal_numbers(
    pairs: list[tuple[float, float]],
) -> None:
    one = np.array([a for a, _ in pairs], dtype=np.float64)
    other = np.array([b for _, b in pairs], dtype=np.float64)
    found = relative_difference(one, other)
    assert found == relative_difference(other, one)
    assert relative_difference(one, one) == 0
    assert 0 <= found <= 2 or found == math.inf
    if all(map(math.isfinite, [*one, *other])):
        expected = max(
            (float(abs(a / 2 - b / 2) / max(abs(a), abs(b)) * 2) for a, b in pairs if a != b),
            default=0.0,
        )
        assert found == pytest.approx(expected)
