"""What a word of each dtype is: its bits, and how those of a floating-point number make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ..errors import InjectionError


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format.

    A word is sign, exponent and mantissa, from its highest bit down; an exponent field of 0 is that
    of subnormal numbers. IEEE 754 has those of 16 bits and more, the OCP specifications of 8-bit
    floating point and of microscaling formats the others.

    Attributes:
        mantissa: its stored bits; 0 for a format of powers of two alone, without sign and zero.
        top: the largest finite magnitude, as a word without sign.
        above: what a result beyond it becomes, without sign.
        negative_zero: whether a zero keeps its sign; where not, the word that would be −0 is NaN.
    """

    mantissa: int
    top: int
    above: int
    negative_zero: bool = True


@dataclass(frozen=True)
class WordFormat:
    """A word: an element, or half of a complex one.

    Attributes:
        width: bits.
        element: dtype of a value that is one word; None where torch keeps several in a byte.
        number: its format, if it is a floating-point number.
    """

    width: int
    element: torch.dtype | None
    number: FloatFormat | None = None


_NUMBERS: Final = {
    torch.float64: FloatFormat(52, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    torch.float32: FloatFormat(23, 0x7F7F_FFFF, 0x7F80_0000),
    torch.float16: FloatFormat(10, 0x7BFF, 0x7C00),
    torch.bfloat16: FloatFormat(7, 0x7F7F, 0x7F80),
    # has no infinity: it saturates, as in torch 2.13
    torch.float8_e4m3fn: FloatFormat(3, 0x7E, 0x7E),
    torch.float8_e5m2: FloatFormat(2, 0x7B, 0x7C),
    torch.float8_e4m3fnuz: FloatFormat(3, 0x7F, 0x80, negative_zero=False),
    torch.float8_e5m2fnuz: FloatFormat(2, 0x7F, 0x80, negative_zero=False),
}
_INTEGERS: Final = (
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
)  # fmt: skip
_HALVES: Final = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def _formats() -> dict[torch.dtype, WordFormat]:
    found = {x: WordFormat(8 * x.itemsize, x, number) for x, number in _NUMBERS.items()}
    found |= {x: WordFormat(8 * x.itemsize, x) for x in _INTEGERS}
    found |= {x: found[half] for x, half in _HALVES.items()}
    # dtypes that not every supported version of torch has
    powers: torch.dtype | None = getattr(torch, "float8_e8m0fnu", None)
    if powers is not None:
        found[powers] = WordFormat(8, powers, FloatFormat(0, 0xFE, 0xFF))
    pair: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
    if pair is not None:
        found[pair] = WordFormat(8, None)
    return found


FORMATS: Final = _formats()


def format_of(dtype: torch.dtype, name: str = "the tensor") -> WordFormat:
    """The format of a tensor's words.

    Raises:
        InjectionError: a dtype whose bits have no place of their own, as quantised ones; it names
            dtype and tensor.
    """
    found = FORMATS.get(dtype)
    if found is None:
        raise InjectionError(f"{name} is of {dtype}, which cannot be injected into")
    return found
