"""What a change does to a word of each dtype, against the definition of its format."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected_words import DTYPES, FLOATS, changed, corner_words, scaled, width_of

from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault
from sdc_guard.inject.formats import format_of
from sdc_guard.inject.masks import WIDEST_SCALE, Masks, encoded, masks
from sdc_guard.inject.scaling import scaled as scaled_words

TOP = 2**64 - 1


def by_masks(words: list[int], made: Masks) -> list[int]:
    return [((word & made.and_) | made.or_) ^ made.xor for word in words]


@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flipping_sticking_and_zeroing(dtype: torch.dtype, data: st.DataObject) -> None:
    width = width_of(dtype)
    bits = tuple(data.draw(st.sets(st.integers(0, width - 1), min_size=1)))
    words = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1))
    for change in ("flip", "stuck_at_0", "stuck_at_1"):
        made = masks(change, dtype, bits=bits)  # type: ignore[arg-type]
        fault = Fault("weight", 0, bits=bits, change=change)  # type: ignore[arg-type]
        assert by_masks(words, made) == [changed(word, fault, dtype) for word in words]
        assert max(made[:3]) < 2**width
    assert by_masks(words, masks("zero", dtype)) == [0] * len(words)


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        (torch.float64, -0.1, 0xBFB999999999999A),
        (torch.float32, 0.1, 0x3DCCCCCD),
        (torch.float16, 65504, 0x7BFF),
        (torch.float16, 1e6, 0x7C00),
        (torch.bfloat16, 1.0, 0x3F80),
        (torch.bfloat16, -3.1415926, 0xC049),
        (torch.bfloat16, 1.01, 0x3F81),  # rounded to 1.0078125
        (torch.float8_e4m3fn, 448, 0x7E),
        (torch.float8_e4m3fn, -0.015625, 0x88),
        (torch.float8_e5m2, 57344, 0x7B),
        (torch.float8_e5m2, math.inf, 0x7C),
        (torch.float8_e4m3fnuz, 1.0, 0x40),
        (torch.float8_e5m2fnuz, 1.0, 0x40),
        (torch.float8_e4m3fnuz, math.nan, 0x80),
        (torch.float8_e8m0fnu, 8.0, 130),
        (torch.complex64, 1.0, 0x3F800000),
        (torch.complex128, -2.0, 0xC000000000000000),
        (torch.int8, -1, 0xFF),
        (torch.int16, -2, 0xFFFE),
        (torch.int32, -(2**31), 1 << 31),
        (torch.int64, -(2**63), 1 << 63),
        (torch.int64, 3.0, 3),
        (torch.int32, -1.5, 0xFFFFFFFF),  # as torch: towards zero
        (torch.uint8, 255, 0xFF),
        (torch.uint16, 65535, 0xFFFF),
        (torch.uint32, 2**32 - 1, 2**32 - 1),
        (torch.uint64, TOP, TOP),
        (torch.bool, 1, 1),
        (torch.bool, 0.25, 1),
    ],
)
def test_values_are_encoded_in_the_dtype(dtype: torch.dtype, value: float, word: int) -> None:
    assert encoded(value, dtype) == word
    assert masks("set", dtype, value=value) == Masks(0, word, 0)


@given(value=st.floats(allow_nan=False))
def test_a_set_value_is_the_one_that_python_packs(value: float) -> None:
    assert encoded(value, torch.float64) == struct.unpack("<Q", struct.pack("<d", value))[0]
    with np.errstate(over="ignore"):
        assert encoded(value, torch.float32) == int(np.float64(value).astype("f4").view("u4"))


def scaled_by_torch(words: list[int], exponent: int, dtype: torch.dtype) -> list[int]:
    """The same by the injector's own way."""
    form = format_of(dtype)
    assert form.number is not None
    signed = [word - 2**64 if word >= 2**63 else word for word in words]
    exponents = torch.full((len(words),), exponent)
    found = scaled_words(torch.tensor(signed), exponents, form.width, form.number).tolist()
    return [word % (1 << form.width) if form.width == 64 else word for word in found]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scaling_is_to_nearest_with_ties_to_even(
    dtype: torch.dtype, rng: np.random.Generator
) -> None:
    width = width_of(dtype)
    words = corner_words(dtype)
    words += [int(x) & (1 << width) - 1 for x in rng.integers(0, 2**64, 100, np.uint64)]
    if width == 8:
        words = list(range(256))
    reach = {8: 40, 16: 40, 32: 280, 64: 2200}[width]
    exponents = [1, -1, 2, -2, 5, -5, -reach // 2, reach, -reach]
    exponents += [int(x) for x in rng.integers(-reach, reach, 8)]
    for exponent in exponents:
        expected = [scaled(word, exponent, dtype) for word in words]
        assert scaled_by_torch(words, exponent, dtype) == expected, exponent


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_scaling_is_what_torch_rounds_a_product_to(dtype: torch.dtype) -> None:
    width = width_of(dtype)
    integers = {8: torch.uint8, 16: torch.int16}[width]
    words = torch.arange(1 << width).to(integers)
    numbers = words.view(dtype)
    for exponent in (-30, -7, -1, 1, 3, 16):
        product = (numbers.double() * 2.0**exponent).to(dtype)
        found = scaled_by_torch(list(range(1 << width)), exponent, dtype)
        same = torch.tensor(found).to(integers) == product.view(integers)
        assert bool((same | numbers.isnan()).all())


def test_an_exponent_is_kept_beside_the_masks() -> None:
    assert masks("scale", torch.bfloat16, exponent=-4) == Masks(0xFFFF, 0, 0, -4)


@pytest.mark.parametrize(
    ("change", "dtype", "options", "message"),
    [
        ("flip", torch.bfloat16, {"bits": (16,)}, r"bit 16 is outside w of torch.bfloat16 \(0 to"),
        ("flip", torch.complex64, {"bits": (32,)}, r"bit 32 is outside w of torch.complex64"),
        ("flip", torch.bool, {"bits": (-1,)}, "bit -1 is outside w of torch.bool"),
        ("flip", torch.float32, {}, "no bit of w is given"),
        ("stuck_at_0", torch.float32, {"bits": (3, 3)}, "bit 3 of w is given twice"),
        ("flip", torch.float32, {"bits": (3,), "value": 1.0}, "flip takes no value"),
        ("zero", torch.float32, {"bits": (3,)}, "zero takes no bits"),
        ("set", torch.float32, {"value": 1.0, "exponent": 1}, "set takes no exponent"),
        ("set", torch.float32, {}, "set needs a value: w of torch.float32"),
        ("set", torch.uint8, {"value": 256}, "value 256 is outside of torch.uint8, of which w is"),
        ("set", torch.uint64, {"value": -1}, "value -1 is outside of torch.uint64, of which w"),
        ("set", torch.int64, {"value": math.nan}, "value nan is outside of torch.int64"),
        ("set", torch.int64, {"value": math.inf}, "value inf is outside of torch.int64"),
        ("set", torch.float4_e2m1fn_x2, {"value": 1.0}, "w of torch.float4_e2m1fn_x2 keeps sever"),
        ("scale", torch.float32, {}, "scale needs an exponent: w"),
        ("scale", torch.float32, {"exponent": 0}, "exponent 0 for w"),
        ("scale", torch.float32, {"exponent": WIDEST_SCALE + 1}, "exponent 2201 for w"),
        ("scale", torch.int32, {"exponent": 1}, "w is of torch.int32, which cannot be scaled"),
        ("scale", torch.bool, {"exponent": 1}, "w is of torch.bool, which cannot be scaled"),
        ("scale", torch.float4_e2m1fn_x2, {"exponent": 1}, "torch.float4_e2m1fn_x2, which cannot"),
        ("flop", torch.float32, {}, "no change 'flop' .one of flip, stuck_at_0"),
        ("flip", torch.qint8, {"bits": (0,)}, "w is of torch.qint8, which cannot be injected"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    change: Any, dtype: torch.dtype, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InjectionError, match=message):
        masks(change, dtype, name="w", **options)
