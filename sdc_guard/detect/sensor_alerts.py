"""What the statistical sensor found, as alerts in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert
from .double_centred import Bools, Floats
from .layer_watch import Judged
from .new_zeros import JudgedZeros
from .shift_watch import JudgedShift
from .step_signals import Ints

MOST_ALERTS: Final = 16  # of a step and detector; the text says how many layers more there were
# So many layers at once are not the fault of one tensor
_SEVERAL: Final = 4
_SHARE: Final = 0.25
_LAYERS: Final = (
    ("gradient_norm", "norm", "the gradient's norm is {:+.3g} σ from its past, beside what all "
     "layers did"),
    ("gradient_peak", "peak", "the gradient's largest element is, for its norm, {:+.3g} σ from its "
     "past"),
    ("gradient_zeros", "zeros", "the gradient's share of zeros is {:+.3g} σ from its past"),
)  # fmt: skip
_NEW_ZEROS: Final = (
    "{:,} elements of the gradient are exactly 0, where there were hardly any before, and in no "
    "other layer"
)
_SHIFT: Final = "the gradient's norm has shifted and stays so, {:+.3g} σ summed up"
_WHOLE: Final = (
    ("global_norm", "total", "the norm of all gradients together is {:+.3g} σ from its past"),
    ("loss", "loss", "the loss is {:+.3g} σ from its past"),
)


class SensorAlerts:
    """Makes alerts of what was judged of a single step.

    Args:
        names: of the layers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def of_layers(self, step: int, judged: Judged, limits: Mapping[str, float]) -> list[Alert]:
        """Alerts of norm, peak and zeros."""
        if judged.over is None:
            return []
        return [
            alert
            for kind, (detector, name, text) in enumerate(_LAYERS)
            for alert in self._each(
                step,
                detector,
                judged.over[0, kind, 0],
                judged.score[0, kind, 0],
                limits[name],
                text,
            )
        ]

    def of_shift(self, step: int, judged: JudgedShift, limits: Mapping[str, float]) -> list[Alert]:
        """Alerts of CUSUM."""
        if judged.over is None:
            return []
        over, score = judged.over[0, 0], judged.score[0, 0]
        return self._each(step, "gradient_shift", over, score, limits["shift"], _SHIFT)

    def of_new_zeros(self, step: int, judged: JudgedZeros, zeros: Ints) -> list[Alert]:
        """Alerts of zeros in one layer that had none.

        Args:
            step: the optimizer step.
            judged: of that step alone.
            zeros: int64 (layers,), in that step.
        """
        if judged.over is None:
            return []
        return [
            Alert(
                step,
                "gradient_new_zeros",
                layer,
                self._names[layer],
                float(judged.score[0, layer]),
                1.0,
                "suspect",
                {"text": _NEW_ZEROS.format(int(zeros[layer]))},
            )
            for layer in np.flatnonzero(judged.over[0]).tolist()
        ]

    def of_whole(self, step: int, judged: Judged, limits: Mapping[str, float]) -> list[Alert]:
        """Alerts of the norm of all layers together, and of the loss."""
        if judged.over is None:
            return []
        return [
            _suspect(step, detector, None, "", judged.score[0, kind, 0, 0], limits[name], text)
            for kind, (detector, name, text) in enumerate(_WHOLE)
            if judged.over[0, kind, 0, 0]
        ]

    def _each(
        self, step: int, detector: str, over: Bools, score: Floats, limit: float, text: str
    ) -> list[Alert]:
        layers = np.flatnonzero(over)
        if len(layers) >= _SEVERAL and len(layers) > _SHARE * len(over):
            return [self._of_many(step, detector, layers, score, limit, text)]
        worst = layers[np.argsort(-np.abs(score[layers]), kind="stable")][:MOST_ALERTS].tolist()
        if len(layers) > len(worst):
            text += f"; {len(layers) - len(worst)} more layers"
        return [
            _suspect(step, detector, layer, self._names[layer], score[layer], limit, text)
            for layer in worst
        ]

    def _of_many(
        self,
        step: int,
        detector: str,
        layers: NDArray[np.intp],
        score: Floats,
        limit: float,
        text: str,
    ) -> Alert:
        """One alert of a step that is odd in many layers: a batch, a loss, what they all read."""
        most = int(layers[np.argmax(np.abs(score[layers]))])
        share = f"{len(layers)} of {len(self._names)} layers at once"
        text = f"{text}, and {share}: no single tensor's fault; the most in {self._names[most]}"
        return _suspect(step, detector, None, "", score[most], limit, text)


def _suspect(
    step: int,
    detector: str,
    layer: int | None,
    name: str,
    score: np.float64,
    limit: float,
    text: str,
) -> Alert:
    detail = {"text": text.format(score)}
    return Alert(step, detector, layer, name, float(score), limit, "suspect", detail)
