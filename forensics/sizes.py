"""How large a difference between two computations of the same thing is, and what that looks like.

Rounding leaves a relative difference of a few units in the last place of the format that is summed
in; a wrong exponent bit at least halves or doubles a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Size = Literal["none", "rounding", "numerical", "reduced precision", "other numbers", "exponent"]

# Units in the last place of float32 (2⁻²⁴ relative); sums of many terms gather some tens of them
_ROUNDING: Final = 64 * 2.0**-24
# What other kernels, libraries or machines leave of a float32 loss: 1e-5 was seen between machines
_NUMERICAL: Final = 2.0**-13
# TF32 keeps 10 bits of the mantissa, bfloat16 7: half a unit is 2⁻¹¹ and 2⁻⁸
_REDUCED: Final = 2.0**-7
_EXPONENT: Final = 0.5  # one number is at most half of the other

_LOOKS: Final[dict[Size, str]] = {
    "none": "no difference of the values",
    "rounding": "as rounding does: sums in another order",
    "numerical": "as between kernels, libraries or machines",
    "reduced precision": "as products in TF32 or bfloat16 do, or another random draw",
    "other numbers": "too much for rounding: another batch, draw or state",
    "exponent": "a factor of two and more: as a wrong exponent does, and no rounding",
}


@dataclass(frozen=True)
class Pair:
    """A value of the run and the same of the replay, at one step."""

    step: int
    run: float
    replay: float

    @property
    def apart(self) -> float:
        """|a − b| / max(|a|, |b|), between 0 and 2; infinite where only one is finite."""
        if self.run == self.replay or (math.isnan(self.run) and math.isnan(self.replay)):
            return 0.0
        if not (math.isfinite(self.run) and math.isfinite(self.replay)):
            return math.inf
        return abs(self.run - self.replay) / max(abs(self.run), abs(self.replay))


def size_of(apart: float) -> Size:
    """The size of a relative difference."""
    if apart == 0:
        return "none"
    if apart <= _ROUNDING:
        return "rounding"
    if apart <= _NUMERICAL:
        return "numerical"
    if apart <= _REDUCED:
        return "reduced precision"
    return "other numbers" if apart < _EXPONENT else "exponent"


def described(pair: Pair) -> str:
    """A difference in words."""
    return f"the loss differs by {pair.apart:.1g} of it, {_LOOKS[size_of(pair.apart)]}"


def grows(pairs: Sequence[Pair]) -> bool:
    """Whether it begins as rounding after steps that are equal, and is larger at the end."""
    apart = [pair.apart for pair in pairs]
    first = next((place for place, value in enumerate(apart) if value), None)
    if first is None or first == 0:
        return False
    return size_of(apart[first]) in ("rounding", "numerical") and max(apart[first:]) >= apart[first]


def constant(values: Sequence[float]) -> bool:
    """Whether three or more values are all the same: an output that ignores its input."""
    return len(values) >= 3 and len(set(values)) == 1
