"""From counts of impossible optimizer state to alerts.

Each finding is beyond what the optimizer's arithmetic can do, with slack for its rounding. It
still only suspects: a script may write to the state itself, and an overflow is not a fault of the
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert

# what is measured of a slice of one parameter and its moments, in this order
COLUMNS: Final = (
    *("beyond", "negative", "nonfinite"),  # how many elements
    *("beyond_at", "negative_at", "nonfinite_at"),  # one of them, counted from the slice's start
    *("moved", "moved_at", "ratio"),  # likewise, and the largest |Δθ| over its bound
)

_FINDINGS: Final = {
    "adam_bound": ("beyond", "beyond_at"),
    "adam_negative_v": ("negative", "negative_at"),
    "adam_nonfinite": ("nonfinite", "nonfinite_at"),
    "adam_step": ("moved", "moved_at"),
}
_MEANING: Final = {
    "adam_bound": "exp_avg larger than any gradients can make it beside this exp_avg_sq",
    "adam_negative_v": "exp_avg_sq below zero, which a mean of squares cannot be",
    "adam_nonfinite": "exp_avg or exp_avg_sq not finite: an overflow, or not the optimizer's doing",
    "adam_step": "moved further in one step than the learning rate and the betas allow",
}


@dataclass(frozen=True)
class Slice:
    """Elements start … stop−1 of a layer's parameter, flattened row by row."""

    layer: int
    start: int
    stop: int


class InvariantSensor:
    """Judges what an audit of the optimizer found.

    Args:
        names: the layers' names by their numbers.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._standing: set[tuple[str, Slice]] = set()

    def judge(self, step: int, slices: Sequence[Slice], rows: NDArray[np.float64]) -> list[Alert]:
        """Alerts of one step's audit; a condition that lasts is one alert.

        Args:
            step: the optimizer step.
            slices: what was looked at.
            rows: shape (len(slices), len(COLUMNS)).
        """
        alerts: list[Alert] = []
        for piece, row in zip(slices, rows, strict=True):
            found = dict(zip(COLUMNS, row.tolist(), strict=True))
            for detector, (what, where) in _FINDINGS.items():
                if self._is_new(detector, piece, found[what]):
                    alerts.append(self._alert(step, detector, piece, found, what, where))
        return alerts

    def _is_new(self, detector: str, piece: Slice, count: float) -> bool:
        key = (detector, piece)
        if not count:
            self._standing.discard(key)
            return False
        known = key in self._standing
        self._standing.add(key)
        return not known

    def _alert(
        self,
        step: int,
        detector: str,
        piece: Slice,
        found: Mapping[str, float],
        what: str,
        where: str,
    ) -> Alert:
        count, index = int(found[what]), piece.start + int(found[where])
        text = (
            f"{_MEANING[detector]} ({count} of the elements {piece.start} to {piece.stop - 1}, "
            f"{index} among them); a script that writes to the state can do this too"
        )
        detail = {"text": text, "elements": count, "index": index}
        moved = detector == "adam_step"
        return Alert(
            step=step,
            detector=detector,
            layer=piece.layer,
            layer_name=self._names[piece.layer],
            score=found["ratio"] if moved else float(count),
            threshold=1.0 if moved else 0.0,
            severity="suspect",
            detail=detail,
        )
