"""What became of a fault, by hand-made traces and hashes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sdc_guard.campaign.judge import compare_states, effect, ratios
from sdc_guard.campaign.trace import StepRow, Trace, first_difference

NAN, INF = math.nan, math.inf
ROW = StepRow(loss=2.0, grad_norm=1.0, lr=0.1, batch_hash=5, skipped=False)


def trace(**changes: object) -> Trace:
    """Three steps of two layers; `changes` are those of the loss row of step 2."""
    steps = dict.fromkeys((1, 2, 3), ROW) | {2: replace(ROW, **changes)}  # type: ignore[arg-type]
    layers = {step: {0: (1.0, 0.5, 0.1, 0, 0), 1: (0.0, 0.0, 0.0, 0, 8)} for step in (1, 2, 3)}
    digests = {
        step: {("before", "param", 0): (1, 2, 3), ("after", "param", 0): (step, 2, 3)}
        for step in (1, 2, 3)
    }
    return Trace(steps, layers, digests)


def with_layer(layer: int, *signals: float) -> Trace:
    changed = trace()
    changed.layers[2][layer] = signals  # type: ignore[assignment]
    return changed


def test_a_trace_is_its_own_replay_where_values_are_nan_too() -> None:
    assert first_difference(trace(), trace()) is None
    assert first_difference(trace(loss=NAN), trace(loss=NAN)) is None


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (trace(loss=2.0000000000000004), ("loss",)),
        (trace(loss=NAN), ("loss",)),
        (trace(batch_hash=6), ("batch",)),
        (trace(lr=0.2), ("lr",)),
        (trace(grad_norm=9.0), ()),  # made of the layers' norms, which are compared
        (with_layer(0, 1.0, 0.5, 0.1, 0, 1), ("gradients",)),
        (with_layer(1, NAN, 0.0, 0.0, 0, 8), ("gradients",)),
    ],
)
def test_the_first_step_that_differs_and_in_what(other: Trace, what: tuple[str, ...]) -> None:
    found = first_difference(trace(), other)
    assert (found and found.what) == (what or None)
    assert found is None or found.step == 2


def test_digests_differ_before_or_after_the_update() -> None:
    other = trace()
    other.digests[3]["after", "param", 0] = (3, 2, 4)
    found = first_difference(trace(), other)
    assert (found.step, found.what) == (3, ("after",))  # type: ignore[union-attr]
    other.digests[2]["before", "param", 0] = (0, 0, 0)
    found = first_difference(trace(), other)
    assert (found.step, found.what) == (2, ("before",))  # type: ignore[union-attr]


def test_what_only_one_has_digested_is_not_compared() -> None:
    other = trace()
    del other.digests[2]["before", "param", 0]
    assert first_difference(trace(), other) is None


def test_states_are_compared_tensor_by_tensor() -> None:
    twin = {1: {"a": "x", "b": "y"}, 2: {"a": "x", "b": "y"}}
    assert compare_states(twin, twin).first is None
    found = compare_states({1: {"a": "x", "b": "y"}, 2: {"a": "z", "c": "y"}}, twin)
    assert (found.first, found.counts) == (2, {1: 0, 2: 3})  # a, b gone, c new


@pytest.mark.parametrize(
    ("other", "norm", "loss", "expected"),
    [
        (trace(), 1.0, 1.0, "drift"),
        (trace(loss=6.0), 1.0, 3.0, "drift"),
        (trace(loss=0.25), 1.0, 8.0, "spike"),
        (trace(loss=INF), 1.0, INF, "nonfinite"),
        (with_layer(0, 3.0, 1.0, 0.1, 0, 0), 3.0, 1.0, "drift"),
        (with_layer(0, 0.2, 0.1, 0.1, 0, 0), 5.0, 1.0, "spike"),
        (with_layer(0, 0.0, 0.0, 0.0, 0, 8), INF, 1.0, "spike"),
        (with_layer(0, 1.0, 0.5, 0.1, 1, 0), 1.0, 1.0, "nonfinite"),
        (with_layer(0, NAN, NAN, NAN, 8, 0), INF, 1.0, "nonfinite"),
    ],
)
def test_effects(other: Trace, norm: float, loss: float, expected: str) -> None:
    found = ratios(other, trace(), 1)
    assert (found.norm, found.loss) == pytest.approx((norm, loss))
    differs = compare_states({1: {"a": "x"}}, {1: {"a": "y"}})
    assert effect(differs, found) == expected
    same = compare_states({1: {"a": "x"}}, {1: {"a": "x"}})
    assert effect(same, found) == ("masked" if expected == "drift" else expected)


def test_what_came_before_the_fault_does_not_count() -> None:
    assert ratios(trace(loss=200.0), trace(), 3).loss == 1.0
