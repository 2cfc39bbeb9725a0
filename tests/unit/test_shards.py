"""Parts of distributed tensors against the whole: every rank of a mesh in one process, its part cut
by torch's own code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from sdc_guard.archive.compare import solve_change
from sdc_guard.digest import Digest, Patches, Place, Span, digest_tensor
from sdc_guard.digest.device_rows import plain_rows
from sdc_guard.digest.reference import MASK64, words
from sdc_guard.digest.span import position
from sdc_guard.signals.cuts import Cut, held, nested
from sdc_guard.signals.placement import placement

Coordinate = tuple[int, ...]


def coordinates(mesh: tuple[int, ...]) -> Iterator[Coordinate]:
    return itertools.product(*map(range, mesh))


def cut(whole: torch.Tensor, mesh: tuple[int, ...], at: Coordinate, places: Any) -> torch.Tensor:
    """A rank's part, as torch cuts it: by each dimension of the mesh in turn."""
    for parts, number, place in zip(mesh, at, places, strict=True):
        if not place.is_replicate():
            whole = place._split_tensor(whole, parts, with_padding=False)[0][number]
    return whole


def distributed(
    part: torch.Tensor, whole: torch.Tensor, mesh: tuple[int, ...], at: Coordinate, places: Any
) -> DTensor:
    ranks = torch.arange(math.prod(mesh)).reshape(mesh)
    here = DeviceMesh("cpu", ranks, _rank=int(ranks[at]), _init_backend=False)
    assert tuple(here.get_coordinate() or ()) == at
    return DTensor.from_local(
        part, here, places, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def random_tensor(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    raw = np.random.default_rng(seed).bytes(math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[Any]]:
    """Shape of a tensor, shape of a mesh, a placement for each dimension of the mesh."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    dimension = st.integers(0, len(shape) - 1)
    place = st.one_of(
        st.just(Replicate()),
        dimension.map(Shard),
        st.builds(lambda d, f: _StridedShard(d, split_factor=f), dimension, st.integers(1, 4)),
    )  # fmt: skip
    return shape, mesh, [draw(place) for _ in mesh]


DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.float64, torch.complex64]


@settings(max_examples=100)
@given(layout=layouts(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1))
def test_the_digests_of_any_parts_add_up(layout: Any, dtype: torch.dtype, seed: int) -> None:
    shape, mesh, places = layout
    whole = random_tensor(seed, shape, dtype)
    number = torch.arange(whole.numel()).reshape(shape)
    total, certain = Digest(0, 0, 0), True
    for at in coordinates(mesh):
        part = cut(whole, mesh, at, places)
        found = placement(distributed(part, whole, mesh, at, places))
        copies = math.prod(s for s, p in zip(mesh, places, strict=True) if p.is_replicate())
        assert found.copies == copies
        if found.offset is None:
            assert any(isinstance(place, _StridedShard) for place in places)
            certain = False
            continue
        indices = cut(number, mesh, at, places).flatten().tolist()
        assert [position(part.shape, found.offset, i) for i in indices] == list(range(len(indices)))
        plain = plain_rows([part], [found.offset])[0].tolist()
        digest = digest_tensor(part, offset=found.offset)
        assert digest == Digest(*(value & MASK64 for value in plain))
        if all(x == 0 for x, p in zip(at, places, strict=True) if p.is_replicate()):
            total += digest
    assert not certain or total == digest_tensor(whole)


@given(layout=layouts(), dtype=st.sampled_from(DTYPES), data=st.data())
def test_a_changed_element_of_a_part_is_found_where_it_is_in_the_whole(
    layout: Any, dtype: torch.dtype, data: st.DataObject
) -> None:
    shape, mesh, places = layout
    whole = random_tensor(data.draw(st.integers(0, 2**32 - 1)), shape, dtype)
    number = torch.arange(words(whole).numel()).reshape(*shape, -1)
    at = data.draw(st.sampled_from(list(coordinates(mesh))))
    part = cut(whole, mesh, at, places).clone()
    place = placement(distributed(part, whole, mesh, at, places)).offset
    if place is None or not part.numel():
        return
    before = digest_tensor(part, offset=place)
    row = words(part)
    which = data.draw(st.integers(0, row.numel() - 1))
    bit = data.draw(st.integers(0, 8 * row.element_size() - 1))
    raw = row.view(torch.uint8)
    raw[which * row.element_size() + bit // 8] ^= 1 << bit % 8
    after = digest_tensor(part, offset=place)
    change = solve_change(part, before, after, place=place)
    assert change is not None
    assert change.index == cut(number, mesh, at, places).flatten().tolist()[which]
    assert change.bits == [bit]
    assert solve_change(whole, before, before) is None


@pytest.mark.parametrize("shape", [(130, 6), (16, 24), (7, 5), (3, 4), (1, 9)], ids=str)
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 2), (3, 4)], ids=str)
def test_what_fully_shard_does_to_tensor_parallel_parts(
    shape: tuple[int, int], along: int, mesh: tuple[int, int]
) -> None:
    """It cuts the part that is there already, and writes a strided cut in front of the other."""
    whole = torch.randn(shape)
    data, tensor = mesh
    first = _StridedShard(0, split_factor=tensor) if along == 0 else Shard(0)
    total = Digest(0, 0, 0)
    for at in coordinates(mesh):
        mine = list(Shard._custom_chunk(whole, tensor, dim=along))[at[1]]
        part = Shard._custom_chunk(mine, data, dim=0)[at[0]].contiguous()
        place = placement(distributed(part, whole, mesh, at, [first, Shard(along)])).offset
        assert place is not None
        total += digest_tensor(part, offset=place)
    assert total == digest_tensor(whole)


def test_what_is_held_is_right_or_unknown() -> None:
    unknown, ranks = 0, 0
    for size, tensor, data in itertools.product(range(1, 40), range(1, 6), range(1, 6)):
        indices = torch.arange(size)
        for number, other in itertools.product(range(data), range(tensor)):
            mine = Shard._custom_chunk(indices, tensor, 0)[other]
            mine = Shard._custom_chunk(mine, data, 0)[number]
            found = held(size, [Cut(data, number, tensor), Cut(tensor, other)], len(mine))
            ranks += 1
            unknown += found is None
            if found is not None:
                assert [i for first, length in found for i in range(first, first + length)] == (
                    mine.tolist()
                )
    assert unknown < ranks / 1000  # both readings give a part of the same length, and another one


@given(gaps=st.lists(st.integers(1, 3), max_size=12), lengths=st.data())
def test_nested_runs_are_the_runs_they_were_made_of(
    gaps: list[int], lengths: st.DataObject
) -> None:
    runs, first = [], 0
    for gap in gaps:
        length = lengths.draw(st.integers(1, 2))
        runs.append((first + gap, length))
        first += gap + length
    found = [
        span.first + sum(step * stride for step, stride in zip(at, span.strides, strict=True))
        for span in nested(runs)
        for at in itertools.product(*map(range, span.sizes))
    ]
    assert found == [first + i for first, length in runs for i in range(length)]


@pytest.mark.parametrize(
    ("places", "kind"),
    [
        ([Shard(0), Replicate()], int),
        ([Shard(1), Replicate()], Span),
        ([Shard(1), Shard(2)], Span),
        ([_StridedShard(1, split_factor=3), Replicate()], Span),
        ([_StridedShard(1, split_factor=2), Replicate()], Patches),
    ],
    ids=str,
)
def test_places_are_as_simple_as_they_can_be(places: Any, kind: type[Place]) -> None:
    whole = torch.randn(4, 9, 6)
    part = cut(whole, (2, 2), (0, 0), places)
    found = placement(distributed(part, whole, (2, 2), (0, 0), places)).offset
    assert type(found) is kind
    other = torch.randn(5, 9, 6)
    assert placement(distributed(part, other, (2, 2), (0, 0), [Shard(2), Shard(1)])).offset is None
