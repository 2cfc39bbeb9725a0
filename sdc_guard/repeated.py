"""Which alerts of one kind are worth a line in the log, when a detector repeats itself."""

from __future__ import annotations

from dataclasses import dataclass

from .detect.alert import Alert
from .detect.incidents import QUIET_STEPS


@dataclass
class _Series:
    """Alerts of one detector about one layer, at most QUIET_STEPS from each other."""

    first: int
    last: int
    count: int


class Repeated:
    """Tells the first alert of a series, and then the second, fourth, eighth, and so on.

    A series is of one detector, layer and severity, and ends when it was quiet as long as an
    incident is before it closes. It takes a few numbers for each layer that ever had an alert.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, int | None, str], _Series] = {}

    def line(self, alert: Alert) -> str | None:
        """The line of an alert, or None where none is due."""
        key = (alert.detector, alert.layer, alert.severity)
        series = self._series.get(key)
        if series is None or alert.step - series.last > QUIET_STEPS:
            self._series[key] = _Series(alert.step, alert.step, 1)
            return str(alert)
        series.last = max(series.last, alert.step)
        series.count += 1
        if series.count & (series.count - 1):
            return None
        return (
            f"{alert} ({series.count} times since step {series.first}; "
            f"said next at {2 * series.count}, recorded each time)"
        )
