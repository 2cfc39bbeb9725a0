"""What is told of alerts: gathered to a bounded size, in words, and to several takers."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard import Alert
from sdc_guard.delivery import every, logging_alerts
from sdc_guard.delivery.gathered import SHOWN, Gathered
from sdc_guard.delivery.messages import Sender, as_json, headline, slack
from sdc_guard.plain_json import plain

SENDER = Sender("pretrain", "node-3", "5")
alerts = st.builds(
    Alert,
    step=st.integers(0, 2**40),
    detector=st.sampled_from(["norm", "nonfinite", "carried_digest"]),
    layer=st.none() | st.integers(0, 5000),
    layer_name=st.text(max_size=400),
    score=st.floats(),
    threshold=st.floats(),
    severity=st.sampled_from(["suspect", "proven"]),
    detail=st.dictionaries(st.text(max_size=8), st.floats() | st.text(), max_size=3),
)


def gathered(taken: list[Alert]) -> Gathered:
    made = Gathered()
    for alert in taken:
        made.add(alert)
    return made


@given(st.lists(alerts, max_size=60))
def test_what_is_gathered_is_counted_whole_and_kept_in_part(taken: list[Alert]) -> None:
    made = gathered(taken)
    steps = [alert.step for alert in taken]
    assert bool(made) == bool(taken)
    assert made.count == len(taken)
    assert (made.first_step, made.last_step) == (min(steps, default=None), max(steps, default=None))
    assert made.detectors == Counter(alert.detector for alert in taken)
    proven = [alert for alert in taken if alert.severity == "proven"]
    others = [alert for alert in taken if alert.severity != "proven"]
    assert made.proven == len(proven)
    assert made.first == [*proven, *others][:SHOWN]


@given(st.lists(alerts, min_size=1, max_size=40))
def test_every_message_is_strict_json_of_a_bounded_size(taken: list[Alert]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    content = json.loads(as_json(gathered(taken), SENDER, "id"), parse_constant=refuse)
    assert (content["count"], content["rank"], content["id"]) == (len(taken), 5, "id")
    assert len(content["alerts"]) == min(len(taken), SHOWN)
    text = json.loads(slack(gathered(taken), SENDER, "id"))["text"]
    assert len(text.splitlines()) <= SHOWN + 2
    assert len(text) < 40_000
    assert "<" not in text


def test_the_headline() -> None:
    def alert(step: int, detector: str = "norm", severity: str = "suspect") -> Alert:
        return Alert(step, detector, 0, "w", 1.0, 0.0, severity)  # type: ignore[arg-type] # because it is one of two

    assert headline(gathered([alert(0)])) == "1 alert, at step 0: 1 norm"
    several = gathered([alert(9), alert(3), alert(4, "carried_digest", "proven")])
    several.dropped = 1200
    assert headline(several) == (
        "3 alerts, 1 proven, at steps 3 to 9: 2 norm, 1 carried_digest; 1,200 more were dropped"
    )


def test_numbers_that_json_does_not_have() -> None:
    assert plain((math.nan, math.inf, -math.inf, 1.5, None, True, 2**63, b"\x01\xff")) == [
        "NaN", "Infinity", "-Infinity", 1.5, None, True, 2**63, "01ff",
    ]  # fmt: skip


ALERT = Alert(3, "norm", 0, "w", math.inf, 1.0, "suspect", {"text": "large"})


def test_an_error_in_one_taker_does_not_keep_the_alert_from_the_others() -> None:
    taken: list[tuple[str, Alert]] = []

    def fails(alert: Alert) -> None:
        raise KeyError("mine")

    first = lambda alert: taken.append(("first", alert))  # noqa: E731 - because it is that short
    with pytest.raises(KeyError, match="mine"):
        every(fails, first, lambda alert: taken.append(("last", alert)))(ALERT)
    assert taken == [("first", ALERT), ("last", ALERT)]
    with pytest.raises(ExceptionGroup) as caught:
        every(fails, fails, first)(ALERT)
    assert len(caught.value.exceptions) == 2
    assert len(taken) == 3
    every()(ALERT)


def test_logging_keeps_the_alert_as_a_field(caplog: pytest.LogCaptureFixture) -> None:
    logging_alerts(logging.getLogger("mine"), logging.ERROR)(ALERT)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("mine", logging.ERROR)
    assert record.getMessage() == "SDC Guard: step 3: norm in w: large"
    assert record.alert["score"] == "Infinity"  # type: ignore[attr-defined] # because it is an extra
    assert record.alert["step"] == 3  # type: ignore[attr-defined] # likewise


def test_the_names_of_the_package() -> None:
    from sdc_guard import delivery

    assert all(getattr(delivery, name) is not None for name in delivery.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Webhok'"):
        _ = delivery.Webhok
