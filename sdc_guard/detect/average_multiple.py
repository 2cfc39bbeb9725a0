"""The plain sensor: a layer's gradient norm as a multiple of its recent average, and its robust z.

It has fixed limits and no budget. `sensor` is what a guard uses unless told otherwise; this one
knows nothing of what layers have in common, and judges norms alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .alert import Alert
from .baseline import RATIO_LIMIT, SIGMA_FLOOR, Z_LIMIT, Bools, Floats, NormWindow
from .not_finite import NotFinite, all_finite
from .step_signals import StepSignals

# A log norm nearer than this to the window's median is within both limits: a window's average is
# at least half of its median, as half of its values are no less than that.
_NEAREST_ALARM = min(Z_LIMIT * SIGMA_FLOOR, math.log(RATIO_LIMIT / 2))


class AverageMultiple:
    """Judges the gradient norms and the loss of each step.

    Args:
        names: the layers' names in the order of their numbers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._window = NormWindow(len(self._names))
        self._finite = NotFinite(self._names)

    def judge(self, step: int, signals: StepSignals, loss: float | None) -> list[Alert]:
        """Alerts of one step, which is taken in.

        Args:
            step: the optimizer step.
            signals: of all layers, shape (layers,).
            loss: the training loss, or None when it was not observed.
        """
        bad = signals.nonfinite > 0
        alerts = [*self.judge_loss(step, loss), *self._finite.judge(step, signals.nonfinite)]
        norms = np.where(bad, np.nan, signals.norms)
        far = self._window.far(norms, _NEAREST_ALARM)
        if not (far.any() or bad.any()):
            self._window.admit(norms, ~bad)
            return alerts
        ratio, z = self._window.ratio(norms, far), self._window.robust_z(norms, far)
        with np.errstate(invalid="ignore"):
            too_large, odd = ratio > RATIO_LIMIT, np.abs(z) > Z_LIMIT
        self._window.admit(norms, ~(bad | too_large | odd))
        return [
            *alerts,
            *self._alerts(step, "norm_ratio", too_large, ratio, RATIO_LIMIT, "times its average"),
            *self._alerts(step, "norm_robust_z", odd, z, Z_LIMIT, "robust σ from its median"),
        ]

    def admit_quiet(self, signals: StepSignals, losses: Sequence[float | None]) -> bool:
        """Take in several steps if `judge` would raise no alert in any of them.

        Args:
            signals: shape (steps, layers).
            losses: of each step, or None.

        Returns:
            False if it might: nothing was taken in, and each step has to be judged.
        """
        if not all_finite(signals.nonfinite, losses):
            return False
        if not self._window.admit_quiet(signals.norms, _NEAREST_ALARM):
            return False
        self._finite.take_quiet(losses)
        return True

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """Alerts of a step of which only the loss is to be judged."""
        return self._finite.judge_loss(step, loss)

    def _alerts(
        self, step: int, detector: str, which: Bools, score: Floats, limit: float, unit: str
    ) -> list[Alert]:
        return [
            Alert(
                step,
                detector,
                int(layer),
                self._names[layer],
                float(score[layer]),
                limit,
                "suspect",
                {"text": f"gradient {score[layer]:.4g} {unit}"},
            )
            for layer in np.flatnonzero(which)
        ]
