"""The sensor itself, as a whole and part by part."""

from __future__ import annotations

import copy
from math import prod
from typing import Final

import numpy as np

from ...detect.sensor import NEW_ZEROS, STATISTICS, StepSensor
from ...detect.step_signals import StepSignals
from ..series import Floats, Shapes, SignalSeries

SENSOR: Final = "sensor"
PUBLISHED: Final = 1.0  # the sensor's own alarm: a score beyond its own threshold
_WHOLE: Final = ("total", "loss")  # of the step, not of its layers
_PARTS: Final = {name: f"sensor: {name.replace('_', ' ')}" for name in (*STATISTICS, NEW_ZEROS)}
PARTS: Final = tuple(_PARTS.values())


class SensorEntry:
    """`detect.sensor.StepSensor`, as a guard has it.

    The stream "sensor" is the largest |score| of its parts, each over the threshold that the
    sensor had at that step; those of the parts are their |scores|. What is not finite is not among
    them.

    Args:
        shapes: of the layers.
    """

    def __init__(self, shapes: Shapes) -> None:
        names = [str(layer) for layer in range(len(shapes))]
        self._sensor = StepSensor(names, [prod(shape) for shape in shapes], shapes=shapes)

    def warm(self, history: SignalSeries) -> None:
        """See `Entry`."""
        for row, step in enumerate(history.steps):
            self._sensor.judge(int(step), _signals(history, row), float(history.loss[row]))

    def streams(self, series: SignalSeries) -> dict[str, Floats]:
        """See `Entry`."""
        shape = (len(series), series.layers + 1)
        found = {name: np.full(shape, np.nan) for name in (SENSOR, *PARTS)}
        for row, step in enumerate(series.steps):
            signals, loss = _signals(series, row), float(series.loss[row])
            scores, limits = self._sensor.scores(signals, loss), self._sensor.thresholds
            for name, part in _PARTS.items():
                columns = slice(-1, None) if name in _WHOLE else slice(0, -1)
                found[part][row, columns] = np.abs(getattr(scores, name))
                found[SENSOR][row] = np.fmax(found[SENSOR][row], found[part][row] / limits[name])
            self._sensor.judge(int(step), signals, loss)
        return found

    def branch(self) -> SensorEntry:
        """See `Entry`."""
        return copy.deepcopy(self)


def _signals(series: SignalSeries, row: int) -> StepSignals:
    return StepSignals(
        series.norms[row], series.max_abs[row], series.zeros[row], series.nonfinite[row]
    )
