"""Hashing a batch: content, order and dtype count, nothing else does."""

from __future__ import annotations

import threading
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from sdc_guard.digest.device_rows import rows_on_devices
from sdc_guard.signals.batch import batch_digest, fold, pinned, tensors_of


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


A, B = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])


def hashed(batch: Any) -> int:
    digest = batch_digest(batch)
    assert digest is not None
    return fold(digest)


def test_the_same_content_has_the_same_hash() -> None:
    assert hashed((A, B)) == hashed([A.clone(), B.clone()]) == hashed(Pair(A, B))
    assert hashed({"x": A, "y": B}) == hashed({"y": B, "x": A})
    strided = torch.stack([A, A]).permute(1, 2, 0)[..., 0]
    assert hashed(strided) == hashed(A)


def test_content_order_and_dtype_count() -> None:
    swapped = A.flip(0)
    flipped = A.clone()
    flipped[1, 2] = torch.nextafter(flipped[1, 2], torch.tensor(9.0))
    batches = [(A, B), (B, A), (swapped, B), (flipped, B), (A.double(), B), (A, B + 1), (A,)]
    assert len({hashed(batch) for batch in batches}) == len(batches)


@pytest.mark.parametrize(
    "tensors",
    [
        [A],
        [A, B],
        [torch.zeros(0), B],
        [A.t(), B],
        [torch.tensor([1 + 2j, 3 - 1j]), A],
        [torch.arange(300, dtype=torch.uint8), torch.tensor([True, False])],
        [torch.randn(70, 33, generator=torch.Generator().manual_seed(1)).half(), B],
        [torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))],
    ],
    ids=["one", "two", "empty", "transposed", "complex", "bytes", "half", "double"],
)
def test_the_digests_are_those_of_the_tensors(tensors: list[torch.Tensor]) -> None:
    """Those of a batch in host memory are taken by other code than any others."""
    found = batch_digest(tensors)
    assert found is not None
    assert torch.equal(found, rows_on_devices(tensors, [0] * len(tensors)))


@pytest.mark.parametrize("batch", [None, "text", 3, [], {"a": "b"}])
def test_a_batch_without_tensors_has_none(batch: Any) -> None:
    assert batch_digest(batch) is None


def test_pinned_shares_no_memory_and_keeps_the_structure() -> None:
    batch = {"pair": Pair(A.clone(), B.clone()), "rest": [A.clone(), "text", 3]}
    copy = pinned(batch)
    assert isinstance(copy["pair"], Pair)
    assert copy["rest"][1:] == ["text", 3]
    ours = {tensor.data_ptr() for tensor in tensors_of(copy)}
    assert not ours & {tensor.data_ptr() for tensor in tensors_of(batch)}
    assert hashed(copy) == hashed(batch)


class Encoding(UserDict[str, torch.Tensor]):
    """As tokenizers return them: a mapping whose items are attributes too."""

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self.data[name]  # type: ignore[no-any-return] # because data is untyped
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Graph:
    nodes: torch.Tensor
    names: list[str]


def test_pinned_keeps_the_type_of_mappings_and_sequences() -> None:
    encoding = pinned(Encoding(ids=A.clone()))
    assert isinstance(encoding, Encoding)
    assert torch.equal(encoding.ids, A)
    default = pinned(defaultdict(list, x=[A]))
    assert default["new"] == []
    assert torch.equal(default["x"][0], A)
    assert list(pinned(OrderedDict(b=1, a=2))) == ["b", "a"]
    assert pinned(torch.Size([2, 3])) == torch.Size([2, 3])
    assert pinned(MappingProxyType({"x": 1})) == {"x": 1}


@pytest.mark.parametrize(
    "batch",
    [
        Encoding(ids=A.clone()),
        defaultdict(list, x=[A.clone()]),
        OrderedDict(x=A.clone()),
        MappingProxyType({"x": (A.clone(),)}),
        {"x": [Pair(A.clone(), B.clone())]},
        [A.clone()[:, 1:], A.clone().t()],
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_change_of_the_batch_does_not_reach_the_pinned_one(batch: Any) -> None:
    copy, before = pinned(batch), hashed(batch)
    assert hashed(copy) == before
    for tensor in list(tensors_of(batch)):
        tensor += 1
    assert hashed(batch) != before
    assert hashed(copy) == before


def test_other_objects_are_copied_or_kept() -> None:
    graph, lock, array = Graph(A.clone(), ["a"]), threading.Lock(), np.ones(2)
    copy = pinned([graph, lock, array])
    graph.nodes += 1
    array += 1
    assert torch.equal(copy[0].nodes, A)
    assert copy[1] is lock
    assert copy[2].tolist() == [1, 1]


def test_pinned_is_detached() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not pinned(weight * 2).requires_grad


def test_the_sign_of_zero_and_the_bits_of_nan_count() -> None:
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    values = [torch.tensor([0.0]), torch.tensor([-0.0]), nan[:1], nan[1:]]
    assert len({hashed(value) for value in values}) == 4


def test_the_hash_is_a_signed_64_bit_number() -> None:
    hashes = [hashed(torch.tensor([number])) for number in range(40)]
    assert len(set(hashes)) == 40
    assert all(-(2**63) <= number < 2**63 for number in hashes)
    assert min(hashes) < 0 < max(hashes)
