"""Steps judged many at once: the same alerts and the same past as one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.sensor import StepSensor

LAYERS = 4
TABLES = {
    "steps": "step, loss, lr, grad_norm, skipped, accumulation, batch_hash, tokens, attempt",
    "layers": "*",
    "alerts": "step, layer, detector, score, threshold, severity",
    "shadow": "step, loss, repeat_loss, batch_hash",
    "events": "step, kind, detail",
}


def course(seed: int, steps: int, upsets: list[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Norms and non-finite counts of steps that drift, with upsets at given steps."""
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, 0.15, (steps, LAYERS)), axis=0)
    norms, bad = np.exp(drift + rng.normal(0, 0.2, (steps, LAYERS))), np.zeros((steps, LAYERS))
    for step, kind in upsets:
        layer = step % LAYERS
        if kind == "bad":
            norms[step % steps, layer], bad[step % steps, layer] = math.nan, 3
        else:
            norms[step % steps, layer] *= {"none": math.nan, "zero": 0.0}.get(kind) or 1.0
            norms[step % steps, layer] *= {"large": 1e3, "small": 1e-6, "near": 20.0}.get(kind, 1.0)
            if kind == "zero":
                norms[step % steps, layer] = 0.0
    return norms, bad


def one_by_one(sensor: StepSensor, norms, bad, losses) -> list[Alert]:  # type: ignore[no-untyped-def]
    return [
        alert
        for step, (row, count, loss) in enumerate(zip(norms, bad, losses, strict=True))
        for alert in sensor.judge(step, row, count.astype(np.int64), loss)
    ]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    upsets=st.lists(
        st.tuples(
            st.integers(0, 199), st.sampled_from(["bad", "none", "zero", "large", "small", "near"])
        ),
        max_size=4,
    ),
    sizes=st.lists(st.integers(1, 40), min_size=20, max_size=20),
    lost=st.sets(st.integers(0, 199), max_size=2),
)
def test_many_at_once_take_in_what_one_by_one_does(
    seed: int, upsets: list[tuple[int, str]], sizes: list[int], lost: set[int]
) -> None:
    norms, bad = course(seed, 200, upsets)
    losses = [math.nan if step in lost else 1.0 for step in range(200)]
    names = [f"layer {number}" for number in range(LAYERS)]
    reference, sensor = StepSensor(names), StepSensor(names)
    expected = one_by_one(reference, norms, bad, losses)
    found: list[Alert] = []
    start = 0
    for size in [*sizes, 200]:
        part = slice(start, min(start + size, 200))
        if not sensor.admit_quiet(norms[part], bad[part], losses[part]):
            for step in range(200)[part]:
                count = bad[step].astype(np.int64)
                found += sensor.judge(step, norms[step], count, losses[step])
        start = part.stop
    assert found == expected
    np.testing.assert_array_equal(sensor._window._logs, reference._window._logs)
    np.testing.assert_array_equal(sensor._window._seen, reference._window._seen)


def test_a_healthy_course_is_quiet_even_where_norms_drift_apart() -> None:
    """Else the fast way would not be taken: over a window the norms fall to a tenth."""
    sensor = StepSensor(["a", "b"])
    norms = np.exp(-0.035 * np.arange(400))[:, None] * np.array([1.0, 2.0])
    quiet = [
        sensor.admit_quiet(norms[at : at + 10], np.zeros((10, 2)), [1.0] * 10)
        for at in range(0, 400, 10)
    ]
    assert all(quiet)


def test_a_healthy_course_is_quiet_even_where_norms_scatter() -> None:
    """Far from the median of a wide window is not far by the limits."""
    seed = 5
    print(f"seed {seed}")
    norms = np.exp(np.random.default_rng(seed).normal(0, 1.0, (400, 2)))
    sensor, reference = StepSensor(["a", "b"]), StepSensor(["a", "b"])
    assert one_by_one(reference, norms, np.zeros((400, 2)), [1.0] * 400) == []
    for at in range(0, 400, 25):
        assert sensor.admit_quiet(norms[at : at + 25], np.zeros((25, 2)), [1.0] * 25)


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
            factor = {60: 1e6, 75: math.nan}.get(step, 1.0)
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
