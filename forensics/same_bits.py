"""Whether tensors of two checkpoints have the same bits, reading no more than that takes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .content import StoredTensor


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one dtype and shape, and each bit is the same."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(as_bytes(one), as_bytes(other))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes, uint8, one-dimensional."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def all_same(one: Mapping[str, StoredTensor], other: Mapping[str, StoredTensor]) -> bool:
    """Whether both have the same tensors, bit for bit; False where there are none.

    Stops at the first difference: where the first tensors are small, that costs next to nothing.

    Raises:
        CheckpointUnreadable: one of the tensors cannot be read.
    """
    if not one or one.keys() != other.keys():
        return False
    return all(same_bits(tensor.read(), other[name].read()) for name, tensor in one.items())
