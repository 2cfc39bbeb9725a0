"""Gradients and losses that are no finite numbers: told once, as long as they stand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .alert import Alert
from .step_signals import Ints


class NotFinite:
    """Watches the gradients of all layers, and the loss.

    Args:
        names: of the layers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._before = np.zeros(len(names), dtype=bool)
        self._loss_was_finite = True

    def judge(self, step: int, nonfinite: Ints) -> list[Alert]:
        """Alerts of the layers where it begins.

        Args:
            step: the optimizer step.
            nonfinite: elements that are no finite numbers, shape (layers,).
        """
        bad = nonfinite > 0
        new, self._before = bad & ~self._before, bad
        layers = np.flatnonzero(new).tolist()
        return [self._alert(step, layer, int(nonfinite[layer])) for layer in layers]

    def _alert(self, step: int, layer: int, count: int) -> Alert:
        detail = {"text": f"gradient {count} non-finite elements"}
        name = self._names[layer]
        return Alert(step, "nonfinite_gradient", layer, name, float(count), 0.0, "suspect", detail)

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """An alert if the loss begins not to be finite; None is no loss."""
        if loss is None:
            return []
        finite = math.isfinite(loss)
        first, self._loss_was_finite = self._loss_was_finite and not finite, finite
        if not first:
            return []
        detail = {"text": f"the loss is {loss}"}
        return [Alert(step, "nonfinite_loss", None, "", 1.0, 0.0, "suspect", detail)]

    def take_quiet(self, losses: Sequence[float | None]) -> None:
        """Take in steps in which all is finite."""
        self._before[:] = False
        if any(loss is not None for loss in losses):
            self._loss_was_finite = True


def all_finite(nonfinite: Ints, losses: Sequence[float | None]) -> bool:
    """Whether every gradient and every loss of some steps is."""
    return not nonfinite.any() and all(loss is None or math.isfinite(loss) for loss in losses)
