"""The alert of two shadow losses that differ."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.incidents import QUIET_STEPS, IncidentBook
from sdc_guard.detect.shadow import ShadowWatch, repeat_alert


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2.0, math.nextafter(2.0, 3.0)),
        (2.0, float(np.nextafter(np.float32(2.0), np.float32(3.0)))),
        (0.0, -0.0),
        (1.0, math.nan),
        (math.inf, -math.inf),
        (math.inf, 1.0),
    ],
)
def test_losses_that_differ_in_one_bit_or_more_are_suspect(first: float, second: float) -> None:
    for one, two in ((first, second), (second, first)):
        alert = repeat_alert(7, one, two)
        assert alert is not None
        assert (alert.step, alert.detector, alert.severity) == (7, "shadow_repeat", "suspect")
        assert alert.layer is None
        assert alert.score > alert.threshold
        assert "kernels may be the cause" in str(alert)
        detail = json.loads(alert.detail_json())
        kept = [float.fromhex(detail[name]) for name in ("first", "second")]
        np.testing.assert_array_equal(kept, [one, two])


@given(st.floats())
def test_equal_losses_are_no_alert(loss: float) -> None:
    assert repeat_alert(0, loss, loss) is None


def test_nan_of_any_bits_equals_nan() -> None:
    other = float(np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0])
    assert repeat_alert(0, math.nan, other) is None


def test_another_batch_is_told_before_its_losses_are_judged_and_once() -> None:
    watch = ShadowWatch()
    assert watch.judge(0, 5, 5, (1.0, 1.0)) == []
    assert [alert.detector for alert in watch.judge(1, 5, 5, (1.0, 2.0))] == ["shadow_repeat"]
    (alert,) = watch.judge(2, 5, 6, (1.0, 2.0))
    assert (alert.detector, alert.severity, alert.layer) == ("shadow_batch", "proven", None)
    assert alert.detail["text"].startswith("input differs")
    assert watch.judge(3, 5, 6, (3.0, 4.0)) == []
    assert [alert.detail["found"] for alert in watch.judge(4, 5, 7, (3.0, 4.0))] == [7]
    assert watch.judge(5, None, None, (1.0, 1.0)) == []  # a batch without tensors


def test_an_incident_of_the_pinned_batch_alone_closes() -> None:
    book = IncidentBook()
    (opened,) = book.update(2, ShadowWatch().judge(2, 5, 6, (1.0, 1.0)))
    assert not opened.proven
    assert [incident.closed for incident in book.update(2 + QUIET_STEPS, [])] == [2 + QUIET_STEPS]
