"""What a fault does to a word: new = ((old AND a) OR o) XOR x, and scaling besides.

Flipping bits, sticking them at 0 or 1, zeroing and setting a word all are that operation; only
multiplying by a power of two depends on the word in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from ..errors import InjectionError
from .bits import as_integers
from .fault import CHANGES, Change
from .formats import WordFormat, format_of

WIDEST_SCALE: Final = 2200  # float64 spans 2^-1074 to 2^1024: more moves every number out of it
OF_BITS: Final = ("flip", "stuck_at_0", "stuck_at_1")


class Masks(NamedTuple):
    """The operation on a word; unsigned numbers of its width. The exponent is applied first."""

    and_: int
    or_: int
    xor: int
    exponent: int = 0


def masks(
    change: Change,
    dtype: torch.dtype,
    *,
    bits: Sequence[int] = (),
    value: float | None = None,
    exponent: int | None = None,
    name: str = "the tensor",
) -> Masks:
    """The operation that a change is on words of a dtype.

    Args:
        bits: of "flip", "stuck_at_0" and "stuck_at_1", which need them; others take none.
        value: of "set", rounded to the dtype as torch does; of a complex one, for one half.
        exponent: of "scale": 2 to which power to multiply by.
        name: of the tensor, for messages.

    Raises:
        InjectionError: what cannot be on this dtype, or makes no sense; it names tensor and dtype.
    """
    form = format_of(dtype, name)
    if change not in CHANGES:
        raise InjectionError(f"no change {change!r}", next_step=f"one of {', '.join(CHANGES)}")
    _refuse_what_it_does_not_take(change, bits, value, exponent)
    full = (1 << form.width) - 1
    if change == "zero":
        return Masks(0, 0, 0)
    if change == "set":
        return Masks(0, encoded(value, dtype, name), 0)
    if change == "scale":
        return Masks(full, 0, 0, _exponent(exponent, form, dtype, name))
    chosen = _bits(bits, form, dtype, name)
    if change == "flip":
        return Masks(full, 0, chosen)
    if change == "stuck_at_1":
        return Masks(full, chosen, 0)
    return Masks(full & ~chosen, 0, 0)


def encoded(value: float | None, dtype: torch.dtype, name: str = "the tensor") -> int:
    """The word of a value, unsigned; rounded to the dtype as torch does.

    Raises:
        InjectionError: no value, one outside of an integer dtype's range, or a dtype of which
            several values make a word.
    """
    element = format_of(dtype, name).element
    if value is None:
        raise InjectionError(f"set needs a value: {name} of {dtype}", next_step="give value=")
    if element is None:
        raise InjectionError(
            f"{name} of {dtype} keeps several values in a byte, which cannot be set to one",
            next_step="flip its bits, or zero it",
        )
    integral = not (element.is_floating_point or element == torch.bool)
    if integral:
        limits = torch.iinfo(element)
        if not limits.min <= value <= limits.max:  # a NaN is not either
            raise InjectionError(f"value {value} is outside of {dtype}, of which {name} is")
        value = int(value)
    else:
        value = float(value)  # torch takes no int beyond 64 bits
    word = as_integers(torch.tensor(value, dtype=element))
    return int(word) & (1 << 8 * word.element_size()) - 1


def _refuse_what_it_does_not_take(
    change: Change, bits: Sequence[int], value: float | None, exponent: int | None
) -> None:
    given = {
        "bits": (bool(bits), change in OF_BITS),
        "a value": (value is not None, change == "set"),
        "an exponent": (exponent is not None, change == "scale"),
    }
    for what, (there, taken) in given.items():
        if there and not taken:
            raise InjectionError(f"{change} takes no {what.split()[-1]}", next_step="leave it out")


def _bits(bits: Sequence[int], form: WordFormat, dtype: torch.dtype, name: str) -> int:
    chosen = 0
    for bit in bits:
        if not 0 <= bit < form.width:
            raise InjectionError(
                f"bit {bit} is outside {name} of {dtype}", next_step=f"0 to {form.width - 1}"
            )
        if chosen >> bit & 1:
            raise InjectionError(f"bit {bit} of {name} is given twice")
        chosen |= 1 << bit
    if not chosen:
        raise InjectionError(f"no bit of {name} is given", next_step="give bit= or bits=")
    return chosen


def _exponent(exponent: int | None, form: WordFormat, dtype: torch.dtype, name: str) -> int:
    if exponent is None:
        raise InjectionError(f"scale needs an exponent: {name}", next_step="give exponent=")
    if form.number is None:
        raise InjectionError(
            f"{name} is of {dtype}, which cannot be scaled by a power of two",
            next_step="flip its bits, zero it or set it",
        )
    if not 0 < abs(exponent) <= WIDEST_SCALE:
        raise InjectionError(
            f"exponent {exponent} for {name}", next_step=f"1 to {WIDEST_SCALE}, either sign"
        )
    return exponent
