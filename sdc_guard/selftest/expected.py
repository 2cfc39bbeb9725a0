"""What a line says of the alerts of a training with a fault in it."""

from __future__ import annotations

from ..detect.alert import Alert
from .line import Outcome
from .training import FAULT, Trained


def missed(detector: str, trained: Trained) -> Outcome:
    """The fault was injected, and this detector said nothing."""
    said = ", ".join(sorted({alert.detector for alert in trained.alerts})) or "no detector"
    return Outcome(
        "FAIL", f"{detector} raised no alert ({said} did)", {"errors": trained.health.errors}
    )


def raised(detector: str, trained: Trained, *, step: int = FAULT, layer: str = "") -> Outcome:
    """PASS if a detector's first alert is at this step and, if any is given, names this layer."""
    found = trained.of(detector)
    if not found:
        return missed(detector, trained)
    first: Alert = found[0]
    if first.step != step or (layer and first.layer_name != layer):
        return Outcome("FAIL", f"{detector} named step {first.step} {first.layer_name}".rstrip())
    named = f", {first.layer_name}" if first.layer_name else ""
    return Outcome("PASS", f"{detector} at the fault's step{named}", {"score": str(first.score)})
