"""Signals of healthy steps, made from a seed, and how they are cut into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.choice import Sensor
from sdc_guard.detect.sensor import StepSensor
from sdc_guard.detect.step_signals import StepSignals

LAYERS = 24
NUMEL = 4096


def one(norms: np.ndarray, **others: np.ndarray) -> StepSignals:
    """Signals of one or several steps of which only the norms matter."""
    none = np.zeros(norms.shape, dtype=np.int64)
    given = {"max_abs": norms / 10, "zeros": none, "nonfinite": none} | others
    return StepSignals(norms=norms, **given)


def healthy(steps: int, seed: int, layers: int = LAYERS) -> StepSignals:
    """Layers of very different sizes, σ = 0.15 shared by all, and 0.1 of each its own."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    norms = np.geomspace(1e-2, 10, layers) * np.exp(rng.normal(0, 0.15, (steps, 1)))
    norms = norms * np.exp(rng.normal(0, 0.1, (steps, layers)))
    peaks = norms * np.exp(rng.normal(-3, 0.16, (steps, layers)))
    return one(norms, max_abs=peaks, zeros=rng.poisson(0.1, (steps, layers)))


def scaled(signals: StepSignals, layers: object, factor: object) -> StepSignals:
    """The same with whole gradients of some layers multiplied; in place."""
    signals.norms[..., layers] *= factor  # type: ignore[index] # because any index will do
    signals.max_abs[..., layers] *= factor  # type: ignore[index] # as above
    return signals


def each(signals: StepSignals) -> Iterator[StepSignals]:
    """Its steps, one after the other."""
    for row in range(len(signals.norms)):
        yield StepSignals(
            signals.norms[row], signals.max_abs[row], signals.zeros[row], signals.nonfinite[row]
        )


def sensor(layers: int = LAYERS, budget: float | None = 1e-4) -> StepSensor:
    names = [f"layer {number}" for number in range(layers)]
    return StepSensor(names, [NUMEL] * layers, false_incidents=budget)


def alerts_of(
    sensor: Sensor,
    signals: StepSignals,
    losses: Callable[[int], float | None] = lambda _: 2.0,
    first: int = 0,
) -> list[Alert]:
    """All alerts of some steps, judged one by one."""
    return [
        alert
        for step, of_step in enumerate(each(signals), first)
        for alert in sensor.judge(step, of_step, losses(step))
    ]
