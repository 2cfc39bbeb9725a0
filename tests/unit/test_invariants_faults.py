"""What the invariants of Adam see of injected faults, and what they are blind to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from optimizer_runs import Net, Vector, Watch, apply, train
from torch.optim import AdamW

from sdc_guard.detect.invariants import COLUMNS, InvariantSensor, Slice
from sdc_guard.inject.bits import flip_bit
from sdc_guard.signals.invariants import (
    MomentBound,
    StepBound,
    check_state,
    check_step,
)

SIGN, EXPONENT, MANTISSA = [31], range(23, 31), range(23)
C = 7.2703


def trained(seed: int, steps: int = 60) -> tuple[Net, AdamW, Watch]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = Watch(model, optimizer)
    train(model, optimizer, steps, seed=seed)
    assert not watch.alerts
    return model, optimizer, watch


def target(model: Net, optimizer: AdamW, site: str) -> torch.Tensor:
    weight = model.hidden.weight
    tensor: torch.Tensor = weight if site == "param" else optimizer.state[weight][site]
    return tensor


def step_with_fault(model: Net, optimizer: AdamW, watch: Watch, fault: Callable[[], None]) -> None:
    """One more step, at whose end the fault happens."""
    watch.inside = fault
    train(model, optimizer, 1, seed=1)


@pytest.mark.parametrize(
    ("site", "index", "value", "detector"),
    [
        ("exp_avg", 700, 1e3, "adam_bound"),
        ("exp_avg", 0, -1.0, "adam_bound"),
        ("exp_avg_sq", 767, 0.0, "adam_bound"),
        ("exp_avg_sq", 5, -1e-30, "adam_negative_v"),
        ("exp_avg", 5, math.nan, "adam_nonfinite"),
        ("exp_avg_sq", 9, math.inf, "adam_nonfinite"),
        ("param", 31, 0.5, "adam_step"),
        ("param", 31, math.nan, "adam_step"),
        ("param", 31, -math.inf, "adam_step"),
    ],
)
def test_a_wrong_value_is_found_with_its_place(
    site: str, index: int, value: float, detector: str, seed: int
) -> None:
    model, optimizer, watch = trained(seed)
    tensor = target(model, optimizer, site)

    def write() -> None:
        with torch.no_grad():
            tensor.view(-1)[index] = value

    step_with_fault(model, optimizer, watch, write)
    (alert,) = watch.alerts
    assert (alert.detector, alert.layer_name) == (detector, "hidden.weight")
    assert (alert.step, alert.severity) == (60, "suspect")
    assert alert.detail["index"] == index
    assert alert.detail["elements"] == 1
    assert alert.score > alert.threshold
    assert str(index) in str(alert)


def seen(seed: int, site: str, bits: range | list[int]) -> dict[int, float]:
    """Share of the elements whose flip of a bit, at the end of a step, is seen in that step."""
    model, optimizer, _ = trained(seed)
    weight, found = model.hidden.weight, {}
    m, v = (optimizer.state[weight][name].view(-1) for name in ("exp_avg", "exp_avg_sq"))
    step = StepBound(fixed=1e-3 * C, per_size=1e-5)  # wider than the bound of any step
    row = target(model, optimizer, site).detach().view(-1)
    original = row.clone()
    for bit in bits:
        row.view(torch.int32).bitwise_xor_(-(2**31) if bit == 31 else 1 << bit)
        if site == "param":
            counts = check_step(original, row, step)[:1]
        else:
            counts = check_state(m, v, MomentBound(C))[:3]
        found[bit] = float(counts.sum()) / len(row)
        row.copy_(original)
    return found


def test_flips_in_exp_avg(seed: int) -> None:
    found = seen(seed, "exp_avg", [*MANTISSA, *EXPONENT, *SIGN])
    assert all(found[bit] == 0 for bit in MANTISSA)  # blind
    assert found[31] == 0  # blind
    assert found[30] > 0.99  # a small number becomes a huge one
    assert found[23] < 0.05  # half or twice


def test_flips_in_exp_avg_sq(seed: int) -> None:
    found = seen(seed, "exp_avg_sq", [*MANTISSA, *EXPONENT, *SIGN])
    assert all(found[bit] == 0 for bit in MANTISSA)  # blind
    assert found[31] > 0.99  # negative, but for zeros
    assert found[29] > 0.9  # smaller by 2⁶⁴
    assert found[28] > 0.9  # smaller by 2³²
    assert found[30] < 0.05  # larger: blind


def test_flips_in_a_parameter(seed: int) -> None:
    found = seen(seed, "param", [*MANTISSA, *EXPONENT, *SIGN])
    assert all(found[bit] == 0 for bit in range(16))  # blind: less than a step moves
    assert all(found[bit] > 0.9 for bit in EXPONENT)
    assert found[31] > 0.9


def test_a_fault_of_exp_avg_between_two_checks_is_seen_at_the_second(seed: int) -> None:
    model, optimizer, watch = trained(seed)
    flip_bit(optimizer.state[model.hidden.weight]["exp_avg"], 11, 30)
    train(model, optimizer, 1, seed=1)
    assert "adam_bound" in watch.detectors
    assert {alert.detail["index"] for alert in watch.alerts} == {11}


def test_a_fault_that_heals_between_two_checks_is_not_seen() -> None:
    model = Vector(1.0)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = Watch(model, optimizer)
    for _ in range(20):
        apply(model, optimizer, 1.0)
    optimizer.state[model.w]["exp_avg_sq"].zero_()
    apply(model, optimizer, 1.0)  # v = 0.001 again, and |m| = 1 is far beyond
    assert "adam_bound" in watch.detectors
    found = len(watch.alerts)
    for _ in range(200):
        apply(model, optimizer, 1.0)
    assert len(watch.alerts) == found  # healed


def test_a_stuck_second_moment_is_one_alert(seed: int) -> None:
    model, optimizer, watch = trained(seed)
    v = optimizer.state[model.hidden.weight]["exp_avg_sq"]
    watch.inside = lambda: v.view(-1)[100:108].zero_()
    train(model, optimizer, 20, seed=seed)
    bound = [alert for alert in watch.alerts if alert.detector == "adam_bound"]
    assert len(bound) == 1
    assert bound[0].detail["elements"] == 8
    assert 100 <= bound[0].detail["index"] < 108


def test_an_update_that_is_ten_times_too_large_is_seen(seed: int) -> None:
    model, optimizer, watch = trained(seed)
    weight = model.head.weight
    before = weight.detach().clone()

    def overshoot() -> None:
        weight.data.sub_(before).mul_(10).add_(before)

    step_with_fault(model, optimizer, watch, overshoot)
    assert watch.detectors == {"adam_step"}
    assert watch.alerts[0].layer_name == "head.weight"


def test_counts_by_hand() -> None:
    m = torch.tensor([0.0, 2.0, -2.1, 1.0, math.nan, 1.0, math.inf, 0.0])
    v = torch.tensor([0.0, 1.0, 1.0, -1.0, 1.0, math.inf, math.inf, math.nan])
    row = check_state(m, v, MomentBound(factor=2.0))
    assert row.dtype == torch.int64
    assert row.tolist() == [1, 1, 4, 2, 3, 4]
    lost = check_state(m[1:3], v[1:3], MomentBound(torch.tensor(2.0), v_lost=0.0, m_lost=0.2))
    assert lost.tolist() == [0] * 6
    before = torch.tensor([1.0, 2.0, 0.0, math.nan, 4.0])
    after = torch.tensor([1.1, 2.5, 0.0, 1.0, 3.5])
    row = check_step(before, after, StepBound(fixed=0.1, per_size=0.05))
    assert row.tolist() == pytest.approx([2, 1, 2.5])  # 0.1/0.15, 0.5/0.2, 0/0.1, -, 0.5/0.3
    still = check_step(before[2:3], after[2:3], StepBound(0.0, 0.0))
    assert still.tolist() == [0, 0, 0]


def test_moments_of_other_dtypes() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        m, v = torch.tensor([7.0, 8.0], dtype=dtype), torch.tensor([1.0, 1.0], dtype=dtype)
        assert check_state(m, v, MomentBound(C)).tolist() == [1, 0, 0, 1, 0, 0]


def row(**values: float) -> np.ndarray:
    return np.array([[values.get(name, 0.0) for name in COLUMNS]])


def test_a_condition_that_lasts_is_one_alert_per_slice() -> None:
    sensor = InvariantSensor({4: "w"})
    first, second = Slice(4, 0, 100), Slice(4, 100, 130)
    bad = row(beyond=3, beyond_at=7)
    assert [a.detail["index"] for a in sensor.judge(1, [first], bad)] == [7]
    assert sensor.judge(2, [first], bad) == []
    assert [a.detail["index"] for a in sensor.judge(3, [second], bad)] == [107]
    assert sensor.judge(4, [first], row()) == []
    (again,) = sensor.judge(5, [first], bad)
    assert (again.step, again.layer, again.score, again.threshold) == (5, 4, 3.0, 0.0)
    assert again.severity == "suspect"


def test_the_score_of_a_step_is_its_ratio() -> None:
    (alert,) = InvariantSensor({0: "w"}).judge(
        9, [Slice(0, 0, 10)], row(moved=2, moved_at=4, ratio=math.inf)
    )
    assert (alert.detector, alert.score, alert.threshold) == ("adam_step", math.inf, 1.0)
    assert '"index": 4' in alert.detail_json()
