"""What the statistical sensors cost a step, for few and for many layers.

    python benchmarks/sensor_speed.py --layers 52 500 5000 --rounds 10

A healthy stream of `--steps` steps a round, each sensor in turn on the same numbers, in an order
drawn anew; printed are the median over the rounds and their extremes, in processor time of the
thread that judges: that of the training, in the step that ends a second. Sensors are warm: they
have filled their windows. `together` takes in what a guard judges at once, `--together` steps or
20,000 rows; `one by one` is the way under the policies skip and halt, and after an alert.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
from machine import line, machine

from sdc_guard.detect.choice import SENSORS, Sensor, sensor_for
from sdc_guard.detect.step_signals import StepSignals

_MOST_ROWS = 20_000  # as in sdc_guard.pending


def healthy(steps: int, layers: int, rng: np.random.Generator) -> StepSignals:
    """Log-normal norms with σ = 0.15, layers of sizes two orders of magnitude apart."""
    norms = np.exp(rng.normal(0, 0.15, (steps, layers)) + rng.normal(0, 0.1, (steps, 1)))
    norms *= np.geomspace(0.1, 10, layers)
    peaks = norms * np.exp(rng.normal(-3, 0.16, (steps, layers)))
    none = np.zeros((steps, layers), dtype=np.int64)
    return StepSignals(norms, peaks, rng.poisson(0.05, (steps, layers)), none)


def one_by_one(sensor: Sensor, signals: StepSignals) -> None:
    """Judge each step alone."""
    for step in range(len(signals.norms)):
        part = StepSignals(
            signals.norms[step], signals.max_abs[step], signals.zeros[step], signals.nonfinite[step]
        )
        sensor.judge(step, part, 2.0)


def together(sensor: Sensor, signals: StepSignals, at_once: int) -> int:
    """Take in many steps at a time; how many of these were not quiet."""
    loud = 0
    for first in range(0, len(signals.norms), at_once):
        part = signals.steps(first, first + at_once)
        if not sensor.admit_quiet(part, [2.0] * len(part.norms)):
            loud += 1
            one_by_one(sensor, part)
    return loud


def measure(layers: int, steps: int, rounds: int, at_once: int) -> None:
    """Print the rows of one number of layers."""
    rng = np.random.default_rng(7)
    at_once = max(2, min(at_once, _MOST_ROWS // layers))
    numel = np.full(layers, 4096, dtype=np.int64)
    names = [str(layer) for layer in range(layers)]
    ways: dict[str, Callable[[Sensor, StepSignals], object]] = {
        "together": lambda sensor, signals: together(sensor, signals, at_once),
        "one by one": one_by_one,
    }
    arms = {(name, way): sensor_for(name, names, numel, 1e-4) for name in SENSORS for way in ways}
    warm = healthy(320, layers, rng)
    for (_, way), sensor in arms.items():
        ways[way](sensor, warm)
    seconds: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        signals = healthy(steps, layers, rng)
        for arm in random.sample(list(arms), len(arms)):
            start = time.thread_time()
            ways[arm[1]](arms[arm], signals)
            seconds[arm].append((time.thread_time() - start) / steps * 1e3)
    for (name, way), times in seconds.items():
        middle = statistics.median(times)
        print(
            f"{layers:>7}{name:>18}{way:>12}{middle:>10.3f}{min(times):>10.3f}{max(times):>10.3f}",
            flush=True,
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[52, 500, 5000])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--together", type=int, default=32)
    given = parser.parse_args()
    print(line({**machine(), "numpy": np.__version__}))
    print(f"{'layers':>7}{'sensor':>18}{'way':>12}{'ms/step':>10}{'least':>10}{'most':>10}")
    for layers in given.layers:
        measure(layers, given.steps, given.rounds, given.together)


if __name__ == "__main__":
    main()
