"""How recall grows with the false alarms that are allowed: the end of the curve that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .series import Floats

MOST_FALSE: Final = 0.05  # of healthy windows: beyond it nobody would leave the detector on


@dataclass(frozen=True)
class Curve:
    """Recall against false alarms of one detector, up to MOST_FALSE of the healthy windows.

    Attributes:
        false_windows: share of healthy windows with an alarm, rising.
        recall: share of the trials with one, at the same thresholds.
        area: under the curve up to MOST_FALSE, scaled as by McClish (1989): 0.5 by chance, 1 at
            best.
        precision: average precision over all thresholds; it depends on how many trials there are
            for a healthy window.
        windows: healthy windows.
        length: steps of each.
    """

    false_windows: tuple[float, ...]
    recall: tuple[float, ...]
    area: float
    precision: float
    windows: int
    length: int

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "false_windows": list(self.false_windows),
            "recall": list(self.recall),
            "area": self.area,
            "average_precision": self.precision,
            "windows": self.windows,
            "window_steps": self.length,
        }


def windows(runs: Sequence[Floats], length: int) -> Floats:
    """The largest score of each whole window of `length` steps, one after the other.

    Args:
        runs: of each healthy run, the peaks of its steps.
        length: of a window: as long as a trial looks for its fault.
    """
    parts = [run[: len(run) // length * length].reshape(-1, length).max(axis=1) for run in runs]
    return np.concatenate([*parts, np.empty(0)])


def curve(healthy: Floats, faulty: Floats, length: int) -> Curve | None:
    """The curve of a detector.

    Args:
        healthy: largest score of each healthy window; ±∞ is allowed.
        faulty: largest score of each trial.
        length: steps of a window.

    Returns:
        None if there is nothing of the one or of the other.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    if not (len(healthy) and len(faulty)):
        return None
    truth: NDArray[np.int64] = np.repeat([0, 1], [len(healthy), len(faulty)])
    # only the order counts, and the infinities have a place in it
    order = np.unique(np.concatenate([healthy, faulty]), return_inverse=True)[1].reshape(-1)
    false, recall, _ = roc_curve(truth, order, drop_intermediate=True)
    near = false <= MOST_FALSE
    return Curve(
        tuple(map(float, false[near])),
        tuple(map(float, recall[near])),
        float(roc_auc_score(truth, order, max_fpr=MOST_FALSE)),
        float(average_precision_score(truth, order)),
        len(healthy),
        length,
    )
