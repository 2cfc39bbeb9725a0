"""What the log says of a detector that repeats itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sdc_guard import Alert
from sdc_guard.consequences import Consequences
from sdc_guard.ranks import Ranks
from sdc_guard.repeated import Repeated
from sdc_guard.store.health import Health


def alert(step: int, detector: str = "gradient_zeros", layer: int | None = 0) -> Alert:
    return Alert(step, detector, layer, "w", 14.0, 5.0, "suspect", {"text": "+14 σ"})


def told(*steps: int) -> list[int]:
    repeated = Repeated()
    return [step for step in steps if repeated.line(alert(step)) is not None]


def test_a_series_is_told_at_growing_distances() -> None:
    assert told(*range(131, 227)) == [131, 132, 134, 138, 146, 162, 194]  # 96 alerts
    repeated = Repeated()
    assert repeated.line(alert(131)) == "step 131: gradient_zeros in w: +14 σ"
    assert repeated.line(alert(140)) == (
        "step 140: gradient_zeros in w: +14 σ "
        "(2 times since step 131; said next at 4, recorded each time)"
    )


def test_after_a_pause_it_begins_anew() -> None:
    assert told(10, 11, 12, 62, 63) == [10, 11, 62]
    assert told(10, 11, 12, 63, 64) == [10, 11, 63, 64]


def test_detectors_and_layers_are_told_apart() -> None:
    repeated = Repeated()
    others = [alert(5), alert(5, layer=1), alert(5, layer=None), alert(5, "loss")]
    assert all(repeated.line(one) for one in others)
    assert [repeated.line(one) is None for one in others * 2] == [False] * 4 + [True] * 4


def test_the_callback_gets_each_and_the_log_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Alert] = []
    consequences = Consequences("warn", found.append, [], Ranks(tmp_path), Health())
    alerts = [alert(step) for step in range(9)]
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        for one in alerts:
            consequences.notice(one)
    assert found == alerts
    assert [line.split(":")[1] for line in caplog.messages] == [
        " step 0", " step 1", " step 3", " step 7",
    ]  # fmt: skip
