"""Tensors that repeat what is stored, as `expand` leaves them: compared by what is stored.

Expanded in memory one may be far larger than its file; two of them that repeat alike are equal
where their stored elements are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sdc_guard.errors import CheckpointUnreadable

from .content import StoredTensor


def read_alike(stored: Sequence[StoredTensor]) -> list[torch.Tensor]:
    """The tensors, to be compared with each other: each whole, or each without repetitions.

    Args:
        stored: of one shape, where they are to be compared.

    Returns:
        tensors of the same shapes as `stored`; or, where one cannot be expanded and all repeat
        the same dimensions, with size 1 in these.

    Raises:
        CheckpointUnreadable: one cannot be read.
    """
    try:
        return [one.read() for one in stored]
    except CheckpointUnreadable:
        once = [one.once for one in stored if one.once is not None]
        if len(once) < len(stored) or len({(one.dtype, one.shape) for one in stored}) > 1:
            raise
        found = [read() for read in once]
        if len({tensor.shape for tensor in found}) > 1:
            raise
        return found
