"""Whether tensors of two checkpoints have the same bits, reading no more than that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from .content import StoredTensor

_HEADS: Final = (
    64  # tensors whose beginnings are looked at: after that most of what is left is equal
)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, and each bit is the same."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes, uint8, one-dimensional."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # a single one has any stride


def all_same(one: Mapping[str, StoredTensor], other: Mapping[str, StoredTensor]) -> bool:
    """Whether both have the same tensors, bit for bit; False where there are none.

    Stops at the first difference, and looks for one where it costs least: at the beginning of
    each tensor, then at the smallest ones.

    Raises:
        CheckpointUnreadable: one of the tensors cannot be read.
    """
    if not one or one.keys() != other.keys():
        return False
    pairs = [(tensor, other[name]) for name, tensor in one.items()]
    if any(_heads_differ(*pair) for pair in pairs[:_HEADS]):
        return False
    pairs.sort(key=lambda pair: pair[0].numel)
    return all(same_bits(a.read(), b.read()) for a, b in pairs)


def _heads_differ(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return True
    if one.head is None or other.head is None:
        return False
    heads = one.head(), other.head()
    common = min(map(len, heads))
    return heads[0][:common] != heads[1][:common]
