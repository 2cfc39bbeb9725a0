"""Faults on tensors of any dtype and strides, and what they must make of them, by Python's numbers.

Nothing here comes from the injector: words are read out of the storage's bytes, elements are
those of numpy's slices, and numbers are scaled as fractions.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from sdc_guard.inject.fault import Fault

FLOATS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
COMPLEX = [torch.complex64, torch.complex128]
OTHERS = [
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float4_e2m1fn_x2,
]  # fmt: skip
DTYPES = [*FLOATS, *COMPLEX, *OTHERS]


class Number(NamedTuple):
    """A floating-point format: bits of exponent and mantissa, bias, and what has no number."""

    exponent: int
    mantissa: int
    bias: int
    largest: Fraction
    above: int  # the word, without sign, of what is larger


NUMBERS = {
    torch.float64: Number(11, 52, 1023, Fraction(2**53 - 1) * 2**971, 0x7FF << 52),
    torch.float32: Number(8, 23, 127, Fraction(2**24 - 1) * 2**104, 0xFF << 23),
    torch.float16: Number(5, 10, 15, Fraction(65504), 0x7C00),
    torch.bfloat16: Number(8, 7, 127, Fraction(2**8 - 1) * 2**120, 0x7F80),
    torch.float8_e4m3fn: Number(4, 3, 7, Fraction(448), 0x7E),
    torch.float8_e5m2: Number(5, 2, 15, Fraction(57344), 0x7C),
    torch.float8_e4m3fnuz: Number(4, 3, 8, Fraction(240), 0x80),
    torch.float8_e5m2fnuz: Number(5, 2, 16, Fraction(57344), 0x80),
}
NUMBERS |= {torch.complex64: NUMBERS[torch.float32], torch.complex128: NUMBERS[torch.float64]}


def width_of(dtype: torch.dtype) -> int:
    """Bits of a word."""
    return 8 * dtype.itemsize // (2 if dtype.is_complex else 1)


def scaled(word: int, exponent: int, dtype: torch.dtype) -> int:
    """A word times 2**exponent, to nearest, ties to even; from the definition of its format."""
    if dtype == torch.float8_e8m0fnu:
        return word if word == 255 else min(max(word + exponent, 0), 255)
    form = NUMBERS[dtype]
    sign, magnitude = divmod(word, 1 << form.exponent + form.mantissa)
    field, fraction = divmod(magnitude, 1 << form.mantissa)
    whole = fraction + (1 << form.mantissa if field else 0)
    value = whole * Fraction(2) ** (max(field, 1) - form.bias - form.mantissa)
    if value == 0 or value > form.largest:
        return word  # zero, or no number
    made = _nearest(value * Fraction(2) ** exponent, form)
    if form.above == 0x80 and made in (0, 0x80):
        return made  # no zero with a sign
    return sign << form.exponent + form.mantissa | made


def _nearest(value: Fraction, form: Number) -> int:
    power = max(math.floor(_log2(value)), 1 - form.bias)
    units = round(value / Fraction(2) ** (power - form.mantissa))  # ties to even
    if units * Fraction(2) ** (power - form.mantissa) > form.largest:
        return form.above
    return (power + form.bias - 1 << form.mantissa) + units


def _log2(value: Fraction) -> int:
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if Fraction(2) ** found <= value else found - 1


def encoded(value: float, dtype: torch.dtype) -> int:
    """The word of a number, to nearest, ties to even."""
    if dtype == torch.bool:
        return int(value != 0)
    if dtype == torch.float8_e8m0fnu:
        return 127 + _log2(Fraction(value))
    width = width_of(dtype)
    if dtype not in NUMBERS:
        return int(value) % (1 << width)
    made = _nearest(abs(Fraction(value)), NUMBERS[dtype]) if value else 0
    return made | (1 << width - 1 if value < 0 else 0)


def changed(word: int, fault: Fault, dtype: torch.dtype) -> int:
    """What a fault makes of a word."""
    bits = sum(1 << bit for bit in (fault.bits or (() if fault.bit is None else (fault.bit,))))
    if fault.change == "flip":
        return word ^ bits
    if fault.change == "stuck_at_1":
        return word | bits
    if fault.change == "stuck_at_0":
        return word & ~bits
    if fault.change == "zero":
        return 0
    if fault.change == "set":
        assert fault.value is not None
        return encoded(fault.value, dtype)
    assert fault.exponent is not None
    return scaled(word, fault.exponent, dtype)


def changed_element(bits: int, fault: Fault, dtype: torch.dtype) -> int:
    """What a fault makes of an element: of a complex one the real half has the lower bits."""
    if not dtype.is_complex or fault.change in ("flip", "stuck_at_0", "stuck_at_1"):
        return changed(bits, fault, dtype)
    width = width_of(dtype)
    imaginary, real = divmod(bits, 1 << width)
    other = 0 if fault.change == "set" else changed(imaginary, fault, dtype)
    return changed(real, fault, dtype) | other << width


def elements(fault: Fault, shape: tuple[int, ...], first: int) -> list[int]:
    """The elements of a fault's pattern, as numpy's slices have them."""
    number = np.arange(math.prod(shape)).reshape(shape)
    if fault.pattern == "lane":
        starts = range(first, number.size, fault.period)
        return [x for start in starts for x in range(start, start + fault.width) if x < number.size]
    place: tuple[Any, ...] = np.unravel_index(first, shape)
    if fault.pattern == "element" or not shape:
        return [first]
    if len(shape) == 1:
        number, place = number[None], (0, *place)
    *outer, row, column = place
    matrix = number[tuple(outer)]
    blocks = {
        "row": matrix[row],
        "column": matrix[:, column],
        "tile": matrix[row : row + fault.height, column : column + fault.width],
    }
    return sorted(blocks[fault.pattern].ravel().tolist())


class Elements:
    """The elements of a tensor, by index, in the bytes of its storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._first, self._strides = tensor.storage_offset(), tensor.stride()
        self._size, self._shape = tensor.element_size(), tensor.shape

    def slice(self, element: int) -> slice:
        """Where an element's bytes are."""
        place = np.unravel_index(element, self._shape) if self._shape else ()
        steps = zip(place, self._strides, strict=True)
        start = (self._first + sum(int(x) * stride for x, stride in steps)) * self._size
        return slice(start, start + self._size)


def storage(tensor: torch.Tensor) -> bytearray:
    """The whole memory that a tensor is a view of."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload]
    return bytearray(whole.numpy().tobytes())


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype] = DTYPES) -> torch.Tensor:
    """Any bits, in any order of dimensions, with or without gaps in memory."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    before = draw(st.integers(0, 2))
    wide = [size * step for size, step in zip(shape, steps, strict=True)]
    count = math.prod(wide) + before
    raw = np.random.default_rng(draw(st.integers(0, 2**32))).bytes(count * dtype.itemsize)
    if dtype == torch.bool and draw(st.booleans()):
        raw = bytes(x & 1 for x in raw)
    base = torch.frombuffer(bytearray(raw), dtype=dtype)[before:].reshape(wide)
    for dimension, step in enumerate(steps):
        base = base[(slice(None),) * dimension + (slice(None, None, step),)]
    return base.permute(draw(st.permutations(range(len(shape)))))


@st.composite
def faults(draw: st.DrawFn, tensor: torch.Tensor, step: int) -> Fault:
    """A fault of this tensor, at one step."""
    dtype = tensor.dtype
    changes = ["flip", "stuck_at_0", "stuck_at_1", "zero"]
    changes += [] if dtype == torch.float4_e2m1fn_x2 else ["set"]
    change = draw(st.sampled_from([*changes, "scale"] if dtype in (*FLOATS, *COMPLEX) else changes))
    values = [1.0, 2.0, 64.0] if dtype == torch.float8_e8m0fnu else [0.0, 1.0, 3.0, 96.0]
    values += [-1.0, -80.0, 0.3] if dtype in NUMBERS or str(dtype)[6:9] == "int" else []
    bits = draw(st.sets(st.integers(0, 8 * dtype.itemsize - 1), min_size=1, max_size=4))
    period = draw(st.integers(1, 40))
    return Fault(
        "weight",
        step,
        index=draw(st.integers(0, tensor.numel() - 1)),
        bits=tuple(bits) if change in changes[:3] else None,
        change=change,  # type: ignore[arg-type]
        value=draw(st.sampled_from(values)) if change == "set" else None,
        exponent=draw(st.integers(-300, 300).filter(bool)) if change == "scale" else None,
        pattern=draw(st.sampled_from(["element", "row", "column", "tile", "lane"])),
        height=draw(st.integers(1, 4)),
        width=draw(st.integers(1, min(4, period))),
        period=period,
    )


def expected(memory: bytearray, tensor: torch.Tensor, fault: Fault) -> list[tuple[int, int, int]]:
    """Do a fault to the bytes of a tensor's storage; (index, before, after) of each element."""
    assert isinstance(fault.index, int)
    places = Elements(tensor)
    touched = []
    for hit in elements(fault, tuple(tensor.shape), fault.index):
        where = places.slice(hit)
        before = int.from_bytes(memory[where], "little")
        after = changed_element(before, fault, tensor.dtype)
        memory[where] = after.to_bytes(where.stop - where.start, "little")
        touched.append((hit, before, after))
    return sorted(touched)


def corner_words(dtype: torch.dtype) -> list[int]:
    """Words at which a format changes its ways."""
    width = width_of(dtype)
    near = (0, 1, 2, 3, -1, -2, -3)
    powers = itertools.chain.from_iterable((1 << bit, (1 << bit) * 3) for bit in range(width))
    words = {x + y for x in powers for y in near} | {-x for x in range(4)}
    return sorted({x % (1 << width) for x in words})
