"""From one step's numbers to alerts: the statistical detectors, which suspect and never convict.

Each layer's gradient norm, its largest element relative to that and its share of zeros are judged
by `double_centred`, small lasting shifts of the norm by `cusum`, the norm of all layers together
and the loss each by its own past. Thresholds come from a budget of false incidents, see `peaks`:
each of these `STATISTICS` has an equal part of it. Zeros where there never were any follow a rule
of their own, `new_zeros`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from .alert import Alert
from .double_centred import FEWEST_LAYERS, WINDOW, Bools, Floats
from .layer_watch import Judged, LayerWatch
from .new_zeros import JudgedZeros, NewZeros
from .not_finite import NotFinite, all_finite
from .sensor_alerts import SensorAlerts
from .shift_watch import JudgedShift, ShiftWatch
from .step_signals import (
    LAYER_STATISTICS,
    Ints,
    StepSignals,
    layer_statistics,
    log_losses,
    log_total_norm,
    low_floors,
    unused,
)
from .tails import LOSS, NORM, PEAK, SHIFT, TOTAL, ZEROS

FALSE_INCIDENTS: Final = 1e-4  # a step
_OF_ZEROS: Final = 2  # among those of a layer
_OF_LOSS: Final = 1  # among the statistics of the whole
STATISTICS: Final = ("norm", "peak", "zeros", "total", "loss", "shift")
NEW_ZEROS: Final = "new_zeros"


@dataclass(frozen=True)
class StepScores:
    """Scores of one step before any threshold, signed; NaN where nothing is judged.

    Attributes:
        norm: float64 (layers,), robust z of the double-centred log norm.
        peak: likewise, of log(max|g|/norm).
        zeros: likewise, of the log-odds of an element to be zero.
        new_zeros: float64 (layers,), see `new_zeros.JudgedZeros.score`.
        shift: float64 (layers,), the larger CUSUM sum, in σ of the norm.
        total: robust z of the log of the norm of all layers together.
        loss: robust z of the log of the loss.
    """

    norm: Floats
    peak: Floats
    zeros: Floats
    new_zeros: Floats
    shift: Floats
    total: float
    loss: float


@dataclass(frozen=True)
class Block:
    """Some steps, judged by everything."""

    layers: Judged
    whole: Judged
    shift: JudgedShift
    zeros: JudgedZeros

    @property
    def quiet(self) -> bool:
        """Whether nothing is over its threshold."""
        parts = (self.layers, self.whole, self.shift, self.zeros)
        return all(part.over is None for part in parts)


class StepSensor:
    """Judges the gradients and the loss of each step.

    A deep copy goes on by itself: little more than the window is copied.

    Args:
        names: the layers' names in the order of their numbers.
        numel: elements of each layer's gradient.
        shapes: of each; None if they are not known, see `new_zeros.NewZeros`.
        false_incidents: budget, as a probability per step of a healthy run; None raises no
            statistical alerts: what is not finite is told all the same.
    """

    def __init__(
        self,
        names: Sequence[str],
        numel: Sequence[int] | Ints,
        *,
        shapes: Sequence[Sequence[int]] | None = None,
        false_incidents: float | None = FALSE_INCIDENTS,
    ) -> None:
        self._numel = np.asarray(numel, dtype=np.int64)
        layers = len(names)
        budget = None if false_incidents is None else false_incidents / len(STATISTICS)
        norm = NORM if layers >= FEWEST_LAYERS else replace(NORM, tail=TOTAL.tail)
        self._layers = LayerWatch(
            [norm, PEAK, ZEROS],
            layers,
            budget=budget,
            trends=True,
            low_floors=low_floors(self._numel),
        )
        self._whole = LayerWatch([TOTAL, LOSS], 1, budget=budget)
        self._shift = ShiftWatch(layers, tail=SHIFT, budget=budget)
        self._zeros = NewZeros(shapes or [()] * layers, self._numel, budget)
        self._signed = False  # whether there was a loss below zero
        self._finite = NotFinite(names)
        self._said = SensorAlerts(names)

    def judge(self, step: int, signals: StepSignals, loss: float | None) -> list[Alert]:
        """Alerts of one step, which is taken in.

        Args:
            step: the optimizer step.
            signals: of all layers, shape (layers,).
            loss: the training loss, or None when it was not observed.
        """
        if not self._signed and _below_zero([loss]):
            self._signed = True
            self._whole.forget(_OF_LOSS)
        block = self._judged(signals.many, [loss])
        alerts = [*self.judge_loss(step, loss), *self._finite.judge(step, signals.nonfinite)]
        if not block.quiet:
            values = self.thresholds
            alerts += self._said.of_layers(step, block.layers, values)
            alerts += self._said.of_new_zeros(step, block.zeros, signals.zeros)
            alerts += self._said.of_shift(step, block.shift, values)
            alerts += self._said.of_whole(step, block.whole, values)
        self._admit(block)
        return alerts

    def admit_quiet(self, signals: StepSignals, losses: Sequence[float | None]) -> bool:
        """Take in several steps if `judge` would raise no alert in any of them.

        Args:
            signals: shape (steps, layers).
            losses: of each step, or None.

        Returns:
            False if it might: nothing was taken in, and each step has to be judged.
        """
        steps = len(signals.norms)
        if not all_finite(signals.nonfinite, losses) or steps >= WINDOW:
            return False
        if not self._signed and _below_zero(losses):
            return False
        before = self._remember(steps)
        first = 0
        while first < steps:
            last = min(first + self._layers.at_once, steps)
            block = self._judged(signals.steps(first, last), losses[first:last])
            if not block.quiet:
                self._go_back(before)
                return False
            self._admit(block)
            first = last
        self._finite.take_quiet(losses)
        return True

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """Alerts of a step of which only whether its loss is finite is to be judged."""
        return self._finite.judge_loss(step, loss)

    def scores(self, signals: StepSignals, loss: float | None = None) -> StepScores:
        """The scores that `judge` would compare with `thresholds`; nothing is taken in.

        Args:
            signals: of one step, shape (layers,).
            loss: of that step.
        """
        block = self._judged(signals.many, [loss])
        norm, peak, zeros = block.layers.score[0, :, 0]
        total, of_loss = block.whole.score[0, :, 0, 0].tolist()
        new = block.zeros.score[0]
        return StepScores(norm, peak, zeros, new, block.shift.score[0, 0], total, of_loss)

    @property
    def thresholds(self) -> dict[str, float]:
        """What |score| of each statistic, and of new zeros, is compared with now; inf for never."""
        found = [*self._layers.thresholds, *self._whole.thresholds, self._shift.threshold]
        values = {name: held.value for name, held in zip(STATISTICS, found, strict=True)}
        return values | {NEW_ZEROS: self._zeros.limit}

    def _judged(self, signals: StepSignals, losses: Sequence[float | None]) -> Block:
        with np.errstate(invalid="ignore", divide="ignore"):
            x = layer_statistics(signals, self._numel)
            layers = self._layers.judge(x[:, :, None], _excused(signals))
            whole = np.stack([log_total_norm(signals), self._logs(losses)], axis=1)
            judged = self._whole.judge(whole[..., None, None])
            if judged.over is not None:
                layers = self._layers.judge_beside(layers, _any_of_step(judged.over))
            if layers.over is not None and judged.over is not None:
                # one layer's fault moves the total, too, and is told by its own name
                judged = self._whole.without(judged, 0, _any_of_step(layers.over))
            z = layers.detrended
            assert z is not None  # asked for
            if layers.over is not None:
                z = np.where(layers.over[:, 0], np.nan, z)
            return Block(layers, judged, self._shift.judge(z), self._zeros.judge(signals))

    def _logs(self, losses: Sequence[float | None]) -> Floats:
        return log_losses(losses, signed=self._signed)

    def _admit(self, block: Block) -> None:
        anew = self._layers.admit(block.layers)
        self._whole.admit(block.whole)
        self._shift.admit(block.shift, None if anew is None else anew[0])
        self._zeros.admit(block.zeros)

    def _remember(self, steps: int) -> tuple[Any, ...]:
        watches = (self._layers, self._whole, self._shift)
        return *(watch.remember(steps) for watch in watches), self._zeros.remember()

    def _go_back(self, before: tuple[Any, ...]) -> None:
        layers, whole, shift, zeros = before
        self._layers.go_back(layers)
        self._whole.go_back(whole)
        self._shift.go_back(shift)
        self._zeros.go_back(zeros)


def _any_of_step(over: Bools) -> Bools:
    found: Bools = np.logical_or.reduce(over.reshape(len(over), -1), axis=1)
    return found


def _excused(signals: StepSignals) -> Bools | None:
    """Zeros of what was not used, (steps, 3, 1, layers)."""
    layers = unused(signals)
    if layers is None:
        return None
    excused = np.zeros((len(layers), len(LAYER_STATISTICS), 1, layers.shape[1]), dtype=bool)
    excused[:, _OF_ZEROS, 0] = layers
    return excused


def _below_zero(losses: Sequence[float | None]) -> bool:
    return any(loss is not None and loss < 0 for loss in losses)
