"""A fault of a distributed tensor: its elements, on the ranks that hold them, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from injected_words import expected, faults, storage
from test_shards import coordinates, cut, distributed, layouts, random_tensor
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from sdc_guard.digest import Patch, Patches, Span
from sdc_guard.digest.span import position
from sdc_guard.errors import InjectionError
from sdc_guard.inject.device_plan import DevicePlan
from sdc_guard.inject.fault import Draw, Fault, Touched
from sdc_guard.inject.planned import plan_fault
from sdc_guard.inject.shards import positions
from sdc_guard.signals.placement import placement

DRAW = Draw(5, "weight", 0, 0)
DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.float64, torch.complex64]


@settings(max_examples=80)
@given(
    layout=layouts(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_on_any_mesh_the_asked_elements_change_where_they_are_held(
    layout: Any, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    shape, mesh, places = layout
    whole = random_tensor(seed, shape, dtype)
    fault = data.draw(faults(whole, 0))
    bad = whole.clone()
    memory = storage(bad)
    touched = {word[0]: Touched(*word) for word in expected(memory, bad, fault)}
    bad = torch.frombuffer(memory, dtype=dtype).reshape(shape)
    seen: set[int] = set()
    for at in coordinates(mesh):
        part = cut(whole, mesh, at, places).clone()
        tensor = distributed(part, whole, mesh, at, places)
        if placement(tensor).offset is None:
            with pytest.raises(InjectionError, match="no element of w has a known place"):
                plan_fault(fault, 0, tensor, DRAW, "w")
            return
        if not part.numel():
            continue
        sound = storage(part)
        plan = DevicePlan([plan_fault(fault, 0, tensor, DRAW, "w")], dtype, part.device)
        plan.apply(tensor, torch.tensor(0))
        assert storage(part) == storage(cut(bad, mesh, at, places).clone())
        hits = plan.hits()[0].touched
        assert all(word == touched[word.index] for word in hits)
        seen |= {word.index for word in hits}
        assert plan.revert(tensor) == ()
        assert storage(part) == sound
    assert seen == set(touched)


@given(
    indices=st.lists(st.integers(0, 60)),
    place=st.sampled_from(
        [
            7,
            Span(3, (2, 3), (7, 2)),
            Patches(
                (
                    Patch((0, 0), (2, 1), Span(0, (2, 1), (9, 1))),
                    Patch((0, 1), (2, 2), Span(4, (2, 2), (9, 1))),
                )
            ),
        ]
    ),
)
def test_positions_are_those_of_one_element_at_a_time(indices: list[int], place: Any) -> None:
    found = positions(np.array(indices, np.int64), (2, 3), place).tolist()
    one = [position((2, 3), place, index) for index in indices]
    assert found == [-1 if x is None else x for x in one]


def test_an_open_index_is_the_same_element_for_every_rank() -> None:
    whole = torch.zeros(8, 5)
    recorded = []
    for at in coordinates((4,)):
        part = cut(whole, (4,), at, [Shard(0)]).clone()
        tensor = distributed(part, whole, (4,), at, [Shard(0)])
        recorded += plan_fault(Fault("weight", 0), 0, tensor, DRAW).recorded.tolist()
    assert recorded == [DRAW.below(40, "index")]
    plain = plan_fault(Fault("weight", 0), 0, whole, DRAW)
    assert plain.recorded.tolist() == plain.words.tolist() == recorded


@pytest.mark.parametrize(
    ("place", "why"),
    [(Partial(), "hold terms of a sum"), (_StridedShard(0, split_factor=3), "cut unevenly")],
)
def test_elements_of_no_known_place_are_refused(place: Any, why: str) -> None:
    whole = torch.zeros(7, 2)
    places = [place, Replicate()] if isinstance(place, Partial) else [place, Shard(0)]
    part = torch.zeros(7, 2) if isinstance(place, Partial) else torch.zeros(5, 2)
    tensor = distributed(part, whole, (2, 2), (0, 0), places)
    with pytest.raises(InjectionError, match=f"no element of w .*{why}"):
        plan_fault(replace(Fault("weight", 0), index=3), 0, tensor, DRAW, "w")
