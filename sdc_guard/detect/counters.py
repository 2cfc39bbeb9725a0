"""Step counters of optimizers: what a step left must be found by the next one, and grow by one.

Adam and its kin keep in each parameter's state how often it was updated, and correct their bias by
it. Between two steps nothing may write to a counter. Within a step torch's optimizers add one to
it, or leave it where there was no gradient or a scaler's overflow had the update left out; what
else it becomes is not their doing. Over several steps a counter grows by no more than their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert
from .carried import carried_alert

KIND: Final = "step"
_COUNT_IN: Final = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class CounterChange:
    """A counter that is not what it should be: its bits before and after, as unsigned numbers.

    Attributes:
        layer: its number.
        dtype: of the counter, by name.
        steps: how many lie between the two moments.
    """

    layer: int
    dtype: str
    before: int
    after: int
    steps: int

    def location(self) -> dict[str, Any]:
        """As the detail of an alert has it."""
        flipped = self.before ^ self.after
        return {
            "index": 0,
            "bits": [bit for bit in range(64) if flipped >> bit & 1],
            "before": f"0x{self.before:x}",
            "after": f"0x{self.after:x}",
            "dtype": self.dtype,
        }


def wrong_places(bits: NDArray[Any], dtype: str, steps: int) -> NDArray[np.intp]:
    """Where counters are not what they should be.

    Args:
        bits: of n counters at two moments, unsigned, shape (2, n).
        dtype: of the counters, by name.
        steps: how many lie between the two moments; if any, nothing is said of another dtype than
            floating numbers or integers of 32 and 64 bits.
    """
    differ = bits[0] != bits[1]
    if not steps or not differ.any():
        return np.flatnonzero(differ)
    if dtype not in _COUNT_IN:
        return np.empty(0, dtype=np.intp)
    before, after = bits.view(dtype)
    with np.errstate(all="ignore"):
        counted = (before < after) & (after <= before + before.dtype.type(steps))
        # whole numbers; one that was none by then has been told of
        counted &= (after % 1 == 0) | (before % 1 != 0)
    return np.flatnonzero(differ & ~counted)


def wrong_counters(
    layers: tuple[int, ...], bits: NDArray[Any], dtype: str, steps: int
) -> list[CounterChange]:
    """The counters that are not what they should be; see `wrong_places`.

    Args:
        layers: number of each counter's layer.
    """
    return [
        CounterChange(layers[place], dtype, int(bits[0, place]), int(bits[1, place]), steps)
        for place in wrong_places(bits, dtype, steps)
    ]


def counter_alert(step: int, change: CounterChange, name: str) -> Alert:
    """The alert for one counter.

    Args:
        step: that found the change, or the last of those within which it happened.
        name: the layer's name.
    """
    location = change.location()
    if not change.steps:
        return carried_alert(step, (KIND, change.layer), name, location)
    before, after = (_number(bits, change.dtype) for bits in (change.before, change.after))
    steps = change.steps
    during = f"within step {step}" if steps == 1 else f"within the {steps} steps up to {step}"
    text = (
        f"the optimizer's step counter went from {before:g} to {after:g} {during}: "
        "an update adds one, and no update leaves it"
    )
    detail = {"text": text, "kind": KIND, **location, "steps": steps}
    return Alert(step, "step_counter", change.layer, name, 1.0, 0.0, "proven", detail)


def _number(bits: int, dtype: str) -> float:
    kind = np.dtype(dtype)
    return float(np.array([bits], dtype=f"u{kind.itemsize}").view(kind)[0])
