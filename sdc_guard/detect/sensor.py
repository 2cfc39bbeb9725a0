"""From one step's numbers to alerts: the statistical detectors, which suspect and never convict."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .alert import Alert
from .baseline import RATIO_LIMIT, SIGMA_FLOOR, Z_LIMIT, Bools, Floats, NormWindow

# A log norm nearer than this to the window's median is within both limits: a window's average is
# at least half of its median, as half of its values are no less than that.
_NEAREST_ALARM = min(Z_LIMIT * SIGMA_FLOOR, math.log(RATIO_LIMIT / 2))


class StepSensor:
    """Judges the gradient norms, non-finite counts and the loss of each step.

    Args:
        names: the layers' names in the order of their numbers.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._window = NormWindow(len(names))
        self._nonfinite_before = np.zeros(len(names), dtype=bool)
        self._loss_was_finite = True

    def judge(
        self, step: int, norms: Floats, nonfinite: NDArray[np.int64], loss: float | None
    ) -> list[Alert]:
        """Alerts of one step.

        Args:
            step: the optimizer step.
            norms: shape (layers,); NaN for a layer without a gradient.
            nonfinite: shape (layers,), number of NaN and infinite elements.
            loss: the training loss, or None when it was not observed.
        """
        bad = nonfinite > 0
        norms = np.where(bad, np.nan, norms)
        far = self._window.far(norms, _NEAREST_ALARM)
        if not (far.any() or bad.any()):
            self._window.admit(norms, ~bad)
            self._nonfinite_before = bad
            return self.judge_loss(step, loss)
        ratio, z = self._window.ratio(norms, far), self._window.robust_z(norms, far)
        with np.errstate(invalid="ignore"):
            too_large, odd = ratio > RATIO_LIMIT, np.abs(z) > Z_LIMIT
        self._window.admit(norms, ~(bad | too_large | odd))
        return [
            *self.judge_loss(step, loss),
            *self._nonfinite_alerts(step, bad, nonfinite),
            *self._alerts(step, "norm_ratio", too_large, ratio, RATIO_LIMIT, "times its average"),
            *self._alerts(step, "norm_robust_z", odd, z, Z_LIMIT, "robust σ from its median"),
        ]

    def admit_quiet(self, norms: Floats, nonfinite: Floats, losses: list[float | None]) -> bool:
        """Take in several steps if `judge` would raise no alert in any of them.

        Args:
            norms: shape (steps, layers); NaN for a layer without a gradient.
            nonfinite: likewise, number of NaN and infinite elements.
            losses: of each step, or None.

        Returns:
            False if it might: nothing was taken in, and each step has to be judged.
        """
        finite = all(loss is None or math.isfinite(loss) for loss in losses)
        if not finite or nonfinite.any() or not self._window.admit_quiet(norms, _NEAREST_ALARM):
            return False
        self._nonfinite_before[:] = False
        if any(loss is not None for loss in losses):
            self._loss_was_finite = True
        return True

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """Alerts of a step of which only the loss is to be judged."""
        if loss is None:
            return []
        finite = math.isfinite(loss)
        first, self._loss_was_finite = self._loss_was_finite and not finite, finite
        if not first:
            return []
        detail = {"text": f"the loss is {loss}"}
        return [Alert(step, "nonfinite_loss", None, "", 1.0, 0.0, "suspect", detail)]

    def _nonfinite_alerts(self, step: int, bad: Bools, count: NDArray[np.int64]) -> list[Alert]:
        # a standing condition is one alert, not one a step
        new, self._nonfinite_before = bad & ~self._nonfinite_before, bad
        return self._alerts(
            step, "nonfinite_gradient", new, count.astype(float), 0.0, "non-finite elements"
        )

    def _alerts(
        self, step: int, detector: str, which: Bools, score: Floats, limit: float, unit: str
    ) -> list[Alert]:
        if not which.any():
            return []
        return [
            Alert(
                step,
                detector,
                int(layer),
                self._names[layer],
                float(score[layer]),
                limit,
                "suspect",
                {"text": f"gradient {_said(score[layer])} {unit}"},
            )
            for layer in np.flatnonzero(which)
        ]


def _said(score: np.float64) -> str:
    """A score as text; a count in full."""
    return f"{score:.0f}" if score == np.floor(score) else f"{score:.4g}"
