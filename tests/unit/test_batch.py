"""Hashing a batch: content, order and dtype count, nothing else does."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

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
