"""Steps judged many at once: the same alerts and the same past as one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_signals import alerts_of, one
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.choice import SENSORS, Sensor, SensorName, sensor_for
from sdc_guard.detect.step_signals import StepSignals

LAYERS, NUMEL, STEPS = 4, 4096, 400
UPSETS = (
    "bad", "none", "zero", "large", "small", "near", "one", "lanes", "shift", "whole",
)  # fmt: skip
TABLES = {
    "steps": "step, loss, lr, grad_norm, skipped, accumulation, batch_hash, tokens, attempt",
    "layers": "*",
    "alerts": "step, layer, detector, score, threshold, severity",
    "shadow": "step, loss, repeat_loss, batch_hash",
    "events": "step, kind, detail",
}


def course(seed: int, upsets: list[tuple[int, str]]) -> StepSignals:
    """Signals of steps that drift, with upsets at given steps."""
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, 0.1, (STEPS, LAYERS)), axis=0)
    norms = np.exp(drift + rng.normal(0, 0.2, (STEPS, LAYERS)))
    peaks = norms * np.exp(rng.normal(-2, 0.1, norms.shape))
    zeros, bad = rng.poisson(0.2, norms.shape), np.zeros(norms.shape, dtype=np.int64)
    for step, kind in upsets:
        place = (step, step % LAYERS)
        factor = {"large": 1e4, "small": 1e-6, "near": 5.0, "none": math.nan, "zero": 0.0}
        norms[place] *= factor.get(kind, 1.0)
        peaks[place] *= factor.get(kind, 1.0)
        if kind == "bad":
            norms[place], bad[place] = math.nan, 3
        elif kind == "one":
            peaks[place] = norms[place]
        elif kind in ("lanes", "zero"):
            zeros[place] = NUMEL if kind == "zero" else NUMEL // 16
        elif kind == "shift":
            norms[step:, place[1]] *= 2.0
        elif kind == "whole":
            norms[step] *= 100.0
            peaks[step] *= 100.0
    return one(norms, max_abs=peaks, zeros=zeros, nonfinite=bad)


def made(chosen: SensorName, budget: float = 1e-3) -> Sensor:
    names = [f"layer {number}" for number in range(LAYERS)]
    return sensor_for(chosen, names, np.full(LAYERS, NUMEL), budget)


def assert_alike(one: object, other: object) -> None:
    """Two objects hold the same, down to the last bit of their arrays."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)  # type: ignore[arg-type] # because the types are the same
        for mine, yours in zip(one, other, strict=True):  # type: ignore[call-overload] # as above
            assert_alike(mine, yours)
    elif isinstance(one, dict):
        assert_alike(list(one.items()), list(other.items()))  # type: ignore[attr-defined] # as above
    elif hasattr(one, "__dict__"):
        assert_alike(vars(one), vars(other))
    else:
        assert one == other or (one != one and other != other)


@pytest.mark.parametrize("chosen", SENSORS)
@settings(max_examples=12, deadline=None)
@example(seed=34914, upsets=[], sizes=[1] * 30, lost=set(), high=set())
@given(
    seed=st.integers(0, 2**31),
    upsets=st.lists(st.tuples(st.integers(0, STEPS - 1), st.sampled_from(UPSETS)), max_size=5),
    sizes=st.lists(st.integers(1, 40), min_size=30, max_size=30),
    lost=st.sets(st.integers(0, STEPS - 1), max_size=2),
    high=st.sets(st.integers(0, STEPS - 1), max_size=2),
)
def test_many_at_once_take_in_what_one_by_one_does(
    chosen: SensorName,
    seed: int,
    upsets: list[tuple[int, str]],
    sizes: list[int],
    lost: set[int],
    high: set[int],
) -> None:
    signals = course(seed, upsets)

    def loss(step: int) -> float:
        return math.nan if step in lost else 1e6 if step in high else 1.0 + step % 7 / 10

    reference, sensor = made(chosen), made(chosen)
    expected = alerts_of(reference, signals, loss)
    found: list[Alert] = []
    start = 0
    for size in [*sizes, *[100] * 4]:
        stop = min(start + size, STEPS)
        part, losses = signals.steps(start, stop), [loss(step) for step in range(start, stop)]
        if stop > start and not sensor.admit_quiet(part, losses):
            found += alerts_of(sensor, part, loss, start)
        start = stop
    assert found == expected
    assert_alike(sensor, reference)


@pytest.mark.parametrize("chosen", SENSORS)
def test_a_healthy_course_is_quiet_even_where_norms_drift_apart(chosen: SensorName) -> None:
    """Else the fast way would not be taken: over a window the norms fall to a tenth."""
    sensor = made(chosen)
    norms = np.exp(-0.035 * np.arange(400))[:, None] * np.array([1.0, 2.0, 3.0, 4.0])
    quiet = [sensor.admit_quiet(one(norms[at : at + 10]), [1.0] * 10) for at in range(0, 400, 10)]
    assert all(quiet)


@pytest.mark.parametrize("chosen", SENSORS)
def test_a_healthy_course_is_quiet_even_where_norms_scatter(chosen: SensorName) -> None:
    """Far from the median of a wide window is not far by the limits."""
    seed = 5
    print(f"seed {seed}")
    norms = np.exp(np.random.default_rng(seed).normal(0, 1.0, (400, LAYERS)))
    assert alerts_of(made(chosen, 1e-6), one(norms)) == []
    sensor = made(chosen, 1e-6)
    for at in range(0, 400, 25):
        assert sensor.admit_quiet(one(norms[at : at + 25]), [1.0] * 25)


def record(folder: Path, steps: int, *, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdc_guard.pending._TOGETHER", together)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pinned = torch.randn(4, 6)
    with Guard(
        model,
        optimizer,
        run=folder,
        policy="record",
        digest_budget=0.0,
        invariants_every=7,
        shadow=(pinned, lambda model, batch: model(batch).square().mean()),
        shadow_every=9,
    ) as guard:
        for step in range(steps):
            batch = torch.randn(4, 6)
            factor = {70: 1e15, 75: math.nan}.get(step, 1.0)
            parts = batch.split(2) if step % 13 == 5 else [batch]
            for part in parts:
                loss = (model(part) - 1).square().mean() * factor
                loss.backward()
                guard.observe(loss, part)
            if step == 40:
                model[3].bias.grad = None
            if step != 75:
                optimizer.step()
            optimizer.zero_grad()


def test_the_same_rows_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    from sdc_guard.recorder import Recorder

    original = Recorder.quiet_steps

    def counted(self: Recorder, evidence: list[object]) -> bool:
        done = original(self, evidence)  # type: ignore[arg-type]
        calls.append((len(evidence), done))
        return done

    monkeypatch.setattr(Recorder, "quiet_steps", counted)
    monkeypatch.setattr("sdc_guard.pending.JUDGE_SECONDS", math.inf)
    record(tmp_path / "many", 100, together=4, monkeypatch=monkeypatch)
    assert {done for _, done in calls} == {True, False}
    calls.clear()
    record(tmp_path / "single", 100, together=10**9, monkeypatch=monkeypatch)
    assert not calls
    with RunReader(tmp_path / "many") as many, RunReader(tmp_path / "single") as single:
        for table, columns in TABLES.items():
            query = f"SELECT {columns} FROM {table} ORDER BY ALL"
            rows = many.rows(query)
            assert rows
            assert repr(rows) == repr(single.rows(query))  # NaN is as good as NaN
