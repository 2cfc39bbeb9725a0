"""Which statistical sensor a guard has, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from .alert import Alert
from .average_multiple import AverageMultiple
from .sensor import StepSensor
from .step_signals import Ints, StepSignals

SensorName = Literal["double_centred", "average_multiple"]
SENSORS: Final = ("double_centred", "average_multiple")


class Sensor(Protocol):
    """What a guard asks of it; see `sensor.StepSensor`."""

    def judge(self, step: int, signals: StepSignals, loss: float | None) -> list[Alert]:
        """Alerts of one step, which is taken in."""

    def admit_quiet(self, signals: StepSignals, losses: Sequence[float | None]) -> bool:
        """Take in several steps, unless there may be an alert in one of them."""

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """Alerts of a step of which only the loss is to be judged."""


def sensor_for(
    chosen: SensorName,
    names: Sequence[str],
    numel: Ints,
    false_incidents: float | None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Sensor:
    """A sensor without any past.

    Args:
        chosen: one of `SENSORS`. "average_multiple" has fixed limits, and no use for a budget.
        names: of the layers, in the order of their numbers.
        numel: int64 (layers,), elements of each.
        false_incidents: a step; None for no statistical alerts of "double_centred".
        shapes: of the gradients; None if they are not known.
    """
    if chosen == "average_multiple":
        return AverageMultiple(names)
    return StepSensor(names, numel, shapes=shapes, false_incidents=false_incidents)
