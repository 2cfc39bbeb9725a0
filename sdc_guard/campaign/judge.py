"""What became of a fault: its trial against the twin. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .trace import Trace

# a spike: a layer's gradient norm or the loss more than so many times the twin's, or less than one
# part in so many of it
SPIKE: Final = 4.0

Hashes = Mapping[str, str]


@dataclass(frozen=True)
class StateDifference:
    """How the state of a trial went away from its twin's.

    Attributes:
        first: the first step that left another state; None for never.
        counts: tensors that differ after each step.
    """

    first: int | None
    counts: dict[int, int]


def compare_states(trial: Mapping[int, Hashes], twin: Mapping[int, Hashes]) -> StateDifference:
    """Compare the hashes of every tensor after every step of a trial."""
    counts = {
        step: sum(found.get(key) != twin[step].get(key) for key in found.keys() | twin[step].keys())
        for step, found in sorted(trial.items())
    }
    return StateDifference(next((step for step, n in counts.items() if n), None), counts)


@dataclass(frozen=True)
class Ratios:
    """The largest of max(r, 1/r), r = value / the twin's value, and whether any became NaN or ∞."""

    norm: float
    loss: float
    nonfinite: bool


def ratios(trial: Trace, twin: Trace, first: int) -> Ratios:
    """Norms of the layers' gradients and losses of the steps from `first` on."""
    norms, losses, finite = [1.0], [1.0], True
    for step, row in trial.steps.items():
        if step < first:
            continue
        losses.append(_ratio(row.loss, twin.steps[step].loss))
        finite &= _finite(row.loss)
        for layer, (norm, _, _, nonfinite, _) in trial.layers.get(step, {}).items():
            norms.append(_ratio(norm, twin.layers[step][layer][0]))
            finite &= nonfinite == 0 and _finite(norm)
    return Ratios(max(norms), max(losses), not finite)


def effect(states: StateDifference, found: Ratios) -> str:
    """One of tables.EFFECTS.

    "masked": no bit of the state ever differs after a step. "nonfinite": a loss or a gradient is
    NaN or infinite. "spike": see SPIKE. "drift": any other state that differs.
    """
    if found.nonfinite:
        return "nonfinite"
    if max(found.norm, found.loss) > SPIKE:
        return "spike"
    return "masked" if states.first is None else "drift"


def _ratio(value: float | None, twin: float | None) -> float:
    if value is None or twin is None:
        return 1.0 if value is twin else math.inf
    if not (math.isfinite(value) and math.isfinite(twin)):
        return math.inf
    small, large = sorted((abs(value), abs(twin)))
    if small == large:
        return 1.0
    return large / small if small else math.inf


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
