"""Which alarms of a trial were raised by its fault: when the first was, and whom it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .reading import Said
from .series import Floats

# detectors that look at gradients and the loss: by their names, or the beginnings of these
_STATISTICS = frozenset({"global_norm", "loss"})
_STATISTICS_OF = ("norm_", "gradient_", "nonfinite_")


@dataclass(frozen=True)
class Catch:
    """The first alarm that the fault raised.

    Attributes:
        step: of the alarm.
        layer: that it names; None for the whole step.
    """

    step: int
    layer: int | None


def caught(
    scores: Floats, twin: Floats, threshold: float, first_step: int, fault_step: int
) -> Catch | None:
    """The first alarm from the fault on that the twin did not raise, in the layer with the most.

    Args:
        scores: of the trial, shape (steps, layers + 1), the last column of the whole step.
        twin: of the same steps without the fault, from the same past.
        threshold: above which a score is an alarm.
        first_step: number of the first row.
        fault_step: alarms before it are not the fault's.
    """
    start = max(0, fault_step - first_step)
    with np.errstate(invalid="ignore"):
        new = (scores > threshold) & ~(twin > threshold)
    rows = np.flatnonzero(new[start:].any(axis=1))
    if not rows.size:
        return None
    row = start + int(rows[0])
    layers = np.where(new[row, :-1], scores[row, :-1], -np.inf)
    named = int(np.argmax(layers)) if new[row, :-1].any() else None
    return Catch(first_step + row, named)


def earliest(catches: Iterable[Catch | None]) -> Catch | None:
    """The first of several; of those of one step, one that names a layer."""
    found = [one for one in catches if one is not None]
    return min(found, key=lambda one: (one.step, one.layer is None), default=None)


def said_first(alerts: Iterable[Said], fault_step: int) -> Catch | None:
    """The first of the guard's alerts from the fault on."""
    return earliest(Catch(alert.step, alert.layer) for alert in alerts if alert.step >= fault_step)


def evidence_of(alert: Said) -> str:
    """What kind of evidence an alert of the guard's is.

    Returns:
        "audit" for a step that was run again and differed, "digests" for another exact
        comparison, "statistics" for what looks at gradients and the loss, "checks" for the rest:
        the optimizer's invariants, the shadow loss.
    """
    if alert.severity == "proven":
        return "audit" if alert.detector == "step_audit" else "digests"
    if alert.detector in _STATISTICS or alert.detector.startswith(_STATISTICS_OF):
        return "statistics"
    return "checks"
