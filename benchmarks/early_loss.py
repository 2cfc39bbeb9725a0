"""How large a jump of the loss has to be in the first few hundred steps, by two kinds of past.

    python benchmarks/early_loss.py --fit 300 301 302 --judge 330 331 332

`window` is the sensor's own: the log of the loss against median and spread of the last 128. `near`
is one that the sensor does not use: against the median of the last 32, with the spread of how far
earlier losses were from theirs. Both have the budget that a statistic of the sensor has, and each
a tail from other seeds than those judged. Told is the jump of the log loss that raises an alarm
(median over steps and streams), false incidents, and the step at which a loss that rises by 1 % a
step is told.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import small_trainings
import torch
from numpy.typing import NDArray
from series_streams import TAILS, made

from sdc_guard.detect.incidents import QUIET_STEPS
from sdc_guard.detect.layer_watch import LOWEST, LayerWatch
from sdc_guard.detect.peaks import PeakThreshold, Tail, pareto
from sdc_guard.detect.sensor import FALSE_INCIDENTS, STATISTICS
from sdc_guard.detect.step_signals import log_losses
from sdc_guard.detect.tails import LOSS

Floats = NDArray[np.float64]
BUDGET = FALSE_INCIDENTS / len(STATISTICS)
NEAR, KEPT, FEWEST, RENEWAL = 32, 128, 32, 16
BINS = (100, 150, 200, 300, 500)
RISE_AT, RISE = 150, 0.01


class Window:
    """The sensor's own watch of the loss."""

    def __init__(self) -> None:
        self._watch = LayerWatch([LOSS], 1, budget=BUDGET)

    def step(self, x: float) -> tuple[float, bool, float]:
        """Score, whether it is an alarm, and the value from which on it would be one."""
        judged = self._watch.judge(np.full((1, 1, 1, 1), x))
        score = float(judged.score.item())
        spread = self._watch.past.spread.item()
        needed = x + (self._watch.thresholds[0].value - score) * spread
        self._watch.admit(judged)
        return score, judged.over is not None, needed


class Near:
    """Against the median of the last 32; `tail` None only gives scores."""

    def __init__(self, tail: Tail | None) -> None:
        self._threshold = None if tail is None else PeakThreshold(BUDGET, tail, LOWEST)
        self._values: list[float] = []
        self._apart: list[float] = []
        self._steps, self._alarmed = 0, -QUIET_STEPS

    def step(self, x: float) -> tuple[float, bool, float]:
        """As `Window.step`."""
        self._steps += 1
        score, needed, limit = np.nan, np.nan, np.inf
        if not np.isfinite(x):
            return score, False, needed
        level = float(np.median(self._values[-NEAR:])) if len(self._values) >= NEAR else np.nan
        if len(self._apart) >= FEWEST:
            apart = np.array(self._apart[-KEPT:])
            usual, (low, high) = float(np.median(apart)), np.quantile(apart, [0.1, 0.9])
            mad = 1.4826 * float(np.median(np.abs(apart - usual)))
            spread = max(mad, float(high - low) / 2.563) + LOSS.floor
            score = (x - level - usual) / spread
            limit = np.inf if self._threshold is None else self._threshold.value
            needed = level + usual + limit * spread
        over = score > limit
        self._take(score, over)
        if not over:
            self._values.append(x)
            self._apart += [x - level] if np.isfinite(level) else []
        return score, bool(over), needed

    def _take(self, score: float, over: bool) -> None:
        if self._threshold is None:
            return
        goes_on = over and self._steps - self._alarmed < RENEWAL
        self._alarmed = self._steps if over else self._alarmed
        self._threshold.take(np.array([np.nan if goes_on else max(score, 0.0)]))
        if self._steps % RENEWAL == 0:
            self._threshold.renew()


def streams(seeds: list[int], steps: int) -> Iterator[tuple[str, Floats]]:
    """Log losses of healthy trainings and of made streams."""
    for seed in seeds:
        for kind in small_trainings.KINDS:
            losses = [loss for _, loss in small_trainings.recorded(kind, seed, steps).steps]
            yield kind, log_losses(losses, signed=min(losses) < 0)
        for tail in TAILS:
            yield f"made, {tail}", log_losses(made(tail, seed, steps)[0].tolist(), signed=False)


def fitted(found: list[tuple[str, Floats]]) -> Tail:
    """The tail of `Near`'s scores; one that is lighter than ξ = 0.1 is taken for one of that."""
    parts = []
    for _, logs in found:
        near = Near(None)
        parts.append(np.array([near.step(float(x))[0] for x in logs]))
    scores = np.concatenate(parts)
    scores = np.maximum(scores[np.isfinite(scores)], 0.0)
    level = float(np.quantile(scores, 0.95))
    peaks = scores[scores > level] - level
    scale, shape = pareto(peaks)
    return replace(Tail(level, len(peaks) / len(scores), scale, shape), shape=max(shape, 0.1))


def judged(by: Window | Near, logs: Floats) -> tuple[int, list[tuple[int, float]]]:
    """False incidents, and by step the jump above the median of the last 8 that is an alarm."""
    alarms, jumps = [], []
    for step, x in enumerate(logs):
        _, over, needed = by.step(float(x))
        alarms += [step] if over else []
        recent = logs[max(0, step - 8) : step]
        if np.isfinite(needed) and np.isfinite(recent).any():
            jumps.append((step, needed - float(np.nanmedian(recent))))
    return int(bool(alarms)) + int((np.diff(alarms) > QUIET_STEPS).sum()), jumps


def told_at(by: Window | Near, logs: Floats) -> float:
    """Steps until a loss that rises from RISE_AT on is told; infinity if it is not."""
    risen = logs + RISE * np.maximum(np.arange(len(logs)) - RISE_AT, 0)
    steps = [step for step, x in enumerate(risen) if by.step(float(x))[1]]
    return next((float(step - RISE_AT) for step in steps if step >= RISE_AT), np.inf)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fit", nargs="+", type=int, default=[300, 301, 302], metavar="SEED")
    parser.add_argument("--judge", nargs="+", type=int, default=[330, 331, 332], metavar="SEED")
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tail = fitted(list(streams(given.fit, given.steps)))
    print(f"{platform.machine()}, numpy {np.__version__}; near: {tail}")
    found = list(streams(given.judge, given.steps))
    for name in ("window", "near"):
        results = [judged(Window() if name == "window" else Near(tail), logs) for _, logs in found]
        rises = [told_at(Window() if name == "window" else Near(tail), logs) for _, logs in found]
        jumps = np.array([jump for _, of_stream in results for jump in of_stream])
        print(f"{name}: {sum(one for one, _ in results)} incidents", end="")
        print(f" in {sum(len(logs) for _, logs in found)} steps; jump needed", end="")
        for first, last in zip((0, *BINS), BINS, strict=False):
            inside = jumps[(jumps[:, 0] >= first) & (jumps[:, 0] < last), 1]
            print(f"; steps {first} to {last}: {np.median(inside):.2f}", end="")
        seen = np.isfinite(rises).sum()
        print(f"; a rise told in {seen} of {len(rises)}, median {np.median(rises):.0f} steps")


if __name__ == "__main__":
    main()
