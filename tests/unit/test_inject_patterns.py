"""Which elements a pattern hits, against numpy's slices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected_words import elements as by_slices

from sdc_guard.errors import InjectionError
from sdc_guard.inject.device_plan import DevicePlan
from sdc_guard.inject.fault import PATTERNS, Draw, Fault, Touched
from sdc_guard.inject.patterns import MOST_ELEMENTS, elements, flat_index
from sdc_guard.inject.planned import plan_fault

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@given(
    shape=SHAPES,
    pattern=st.sampled_from(PATTERNS),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(4, 40)),
    data=st.data(),
)
def test_the_elements_are_those_of_slices(
    shape: tuple[int, ...], pattern: Any, sizes: tuple[int, int, int], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, math.prod(shape) - 1))
    height, width, period = sizes
    found = elements(pattern, first, shape, height=height, width=width, period=period)
    fault = Fault("weight", 0, pattern=pattern, height=height, width=width, period=period)
    assert found.indices.tolist() == by_slices(fault, shape, first)
    assert found.indices.dtype == np.int64
    assert found.clipped == (pattern == "tile" and len(found.indices) < height * width)


@pytest.mark.parametrize(
    ("pattern", "shape", "first", "hit"),
    [
        ("element", (3, 4), 6, [6]),
        ("row", (3, 4), 6, [4, 5, 6, 7]),
        ("column", (3, 4), 6, [2, 6, 10]),
        ("column", (2, 3, 4), 18, [14, 18, 22]),
        ("tile", (3, 4), 5, [5, 6, 9, 10]),
        ("tile", (3, 4), 11, [11]),
        ("lane", (3, 4), 1, [1, 2, 6, 7, 11]),
        ("row", (4,), 2, [0, 1, 2, 3]),
        ("column", (4,), 2, [2]),
        ("tile", (4,), 2, [2, 3]),
        ("row", (), 0, [0]),
        ("column", (), 0, [0]),
        ("tile", (), 0, [0]),
        ("lane", (), 0, [0]),
    ],
)
def test_what_they_are_by_hand(
    pattern: Any, shape: tuple[int, ...], first: int, hit: list[int]
) -> None:
    assert elements(pattern, first, shape, height=2, width=2, period=5).indices.tolist() == hit


@given(shape=SHAPES, data=st.data())
def test_a_place_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    expected = int(np.ravel_multi_index(place, shape)) if shape else 0
    assert flat_index(place, shape) == flat_index(expected, shape) == expected


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (12, (3, 4), r"index 12 is outside w of shape \[3, 4\] \(0 to 11, or 2 numbers\)"),
        (-1, (3, 4), r"index -1 is outside w of shape \[3, 4\]"),
        ((3, 0), (3, 4), r"index \[3, 0\] is outside w of shape \[3, 4\]"),
        ((1, -1), (3, 4), r"index \[1, -1\] is outside w"),
        ((1,), (3, 4), r"index \[1\] is outside w"),
        ((1, 2, 0), (3, 4), r"index \[1, 2, 0\] is outside w"),
        ((0,), (), r"index \[0\] is outside w of shape \[\]"),
        (0, (0, 4), r"index 0 is outside w of shape \[0, 4\]"),
    ],
)
def test_an_index_outside_names_the_shape(index: Any, shape: Any, message: str) -> None:
    with pytest.raises(InjectionError, match=message):
        flat_index(index, shape, "w")


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("diagonal", {}, "no pattern 'diagonal' .one of element, row"),
        ("tile", {"height": 0}, "a tile of height 0, width 1, period 32 for w"),
        ("lane", {"period": 0}, "a lane of height 1, width 1, period 0 for w"),
        ("lane", {"period": 3, "width": 4}, "a lane of 4 elements each 3 hits some of w twice"),
        ("lane", {"period": 1}, f"{2**22} elements of w in one fault, above {MOST_ELEMENTS}"),
        ("row", {}, f"{2**21} elements of w in one fault, above"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: Any, options: Any, message: str) -> None:
    with pytest.raises(InjectionError, match=message):
        elements(pattern, 0, (2, 2**21), name="w", **options)


def test_a_tile_beyond_the_edge_says_so() -> None:
    fault = Fault("weight", 0, index=(2, 2), bit=0, pattern="tile", height=2, width=2)
    planned = plan_fault(fault, 0, torch.ones(3, 4), Draw(0, "weight", 0, 0))
    assert (planned.clipped, planned.words.tolist()) == (True, [10, 11])


def test_an_element_of_a_complex_tensor_is_the_same_by_count_and_by_place() -> None:
    def hit(**options: Any) -> tuple[torch.Tensor, tuple[Touched, ...]]:
        tensor = torch.complex(torch.arange(1.0, 7), -torch.arange(1.0, 7)).view(2, 3)
        planned = plan_fault(Fault("buffer", 0, **options), 0, tensor, Draw(0, "buffer", 0, 0))
        plan = DevicePlan([planned], tensor.dtype, tensor.device)
        plan.apply(tensor, torch.tensor(0))
        return tensor, plan.hits()[0].touched

    for index in (4, (1, 1)):
        tensor, touched = hit(index=index, change="zero")
        assert tensor.tolist() == [[1 - 1j, 2 - 2j, 3 - 3j], [4 - 4j, 0, 6 - 6j]]
        assert touched == (Touched(4, 0xC0A00000_40A00000, 0),)
        assert hit(index=index, change="set", value=9.0)[0][1, 1] == 9
        assert hit(index=index, change="scale", exponent=2)[0][1, 1] == 20 - 20j
        assert hit(index=index, bit=31)[0][1, 1] == -5 - 5j
        tensor, touched = hit(index=index, bits=(31, 63), pattern="row")
        assert tensor.tolist() == [[1 - 1j, 2 - 2j, 3 - 3j], [-4 + 4j, -5 + 5j, -6 + 6j]]
        assert [(x.index, x.bits) for x in touched] == [(x, [31, 63]) for x in (3, 4, 5)]
        assert hit(index=index, bit=63, pattern="column")[0][:, 1].tolist() == [2 + 2j, 5 + 5j]
    for options, message in (
        ({"index": 6}, "index 6 is outside the tensor of shape"),
        ({"index": (1, 1, 1)}, "index .1, 1, 1. is outside the tensor"),
        ({"index": 0, "bit": 64}, "bit 64 is outside the tensor of torch.complex64 .0 to 63"),
    ):
        with pytest.raises(InjectionError, match=message):
            hit(**options)
    drawn = [_masks_of(seed, torch.zeros(3, dtype=torch.complex64)) for seed in range(20)]
    assert {half for half, _ in drawn} == {0, 1}  # an open bit is of either half


def _masks_of(seed: int, tensor: torch.Tensor) -> tuple[int, int]:
    planned = plan_fault(Fault("buffer", 0), 0, tensor, Draw(seed, "buffer", 0, 0))
    (found,) = [(half, mask.xor) for half, mask in enumerate(planned.masks) if mask.xor]
    return found


def test_what_is_left_open_is_drawn_alike_each_time_and_not_by_torch() -> None:
    tensor = torch.zeros(1000)
    state = torch.get_rng_state()
    drawn = [
        plan_fault(Fault("weight", 7), 0, tensor, Draw(seed, "weight", 7, 0))
        for seed in (1, 1, 2, 3)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    told = [(int(x.words[0]), x.masks, x.key) for x in drawn]
    assert told[0] == told[1]
    assert len({int(x.words[0]) for x in drawn}) == 3


def test_both_bit_and_bits_or_no_probability_are_refused() -> None:
    draw = Draw(0, "weight", 0, 0)
    with pytest.raises(InjectionError, match="a fault of w has both bit and bits"):
        plan_fault(Fault("weight", 0, bit=1, bits=(1, 2)), 0, torch.ones(3), draw, "w")
    with pytest.raises(InjectionError, match=r"probability 1\.5"):
        plan_fault(Fault("weight", 0, probability=1.5), 0, torch.ones(3), draw, "w")
