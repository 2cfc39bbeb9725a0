"""The alert of two shadow losses that differ."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.shadow import repeat_alert


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
