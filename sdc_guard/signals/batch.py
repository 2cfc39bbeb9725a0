"""Batches: hashing their content, and keeping one apart."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..digest import digest_rows
from ..digest.rows import content_in_host
from .batch_hash import folded
from .placement import local


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """The tensors of a nested batch, in the order of `tensors_of`."""
    if type(batch) in (tuple, list) and all(type(item) is torch.Tensor for item in batch):
        return list(batch)  # the usual case, in fewer calls
    return list(tensors_of(batch))


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nested batch, mappings in the order of their keys."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (list, tuple)):
        for item in batch:
            yield from tensors_of(item)
    elif isinstance(batch, Mapping):
        for key in sorted(batch, key=str):
            yield from tensors_of(batch[key])


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors of which a tensor consists: indices and values of a sparse one.

    Of a tensor without readable memory (meta, mkldnn) there are none.
    """
    if tensor.is_meta or tensor.is_mkldnn:
        return []
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def batch_digest(batch: Any) -> torch.Tensor | None:
    """Digests of a batch's tensors, int64 (tensors, 3), on their device; None without tensors.

    Of a distributed tensor it is this rank's part.
    """
    found = digest_of(tensors_in(batch))
    if isinstance(found, bytes):
        return torch.from_numpy(np.frombuffer(found, dtype=np.int64).reshape(-1, 3).copy())
    return found


def digest_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | bytes | None:
    """`batch_digest` of a batch of these tensors, in their order; its bytes if all are plain ones
    in host memory."""
    if tensors and all(map(_is_plain, tensors)) and not torch.compiler.is_compiling():
        return content_in_host(tensors)
    parts: list[torch.Tensor] = []
    for tensor in tensors:
        parts += (tensor,) if _is_plain(tensor) else _plain_parts(local(tensor))
    return digest_rows(parts) if parts else None


def fold(digests: torch.Tensor) -> int:
    """One signed 64-bit number of a batch's digests, in which their order counts."""
    return folded(digests.cpu().numpy().tobytes())


def pinned(batch: Any) -> Any:
    """A copy of a nested batch that shares no memory with it.

    Containers keep their type where it can be made anew from its items, tensors their dtype and
    device. Other objects are copied by copy.deepcopy, or kept where that refuses.
    """
    if isinstance(batch, torch.Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return _mapping(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pinned(item) for item in batch))
    if isinstance(batch, (list, tuple)):
        items = [pinned(item) for item in batch]
        try:
            return type(batch)(items)
        except Exception:  # noqa: BLE001 - because a class may be made from anything
            return items if isinstance(batch, list) else tuple(items)
    try:
        return copy.deepcopy(batch)
    except Exception:  # noqa: BLE001 - because an object may refuse in any way
        return batch


def _mapping(batch: Mapping[Any, Any]) -> Any:
    items = {key: pinned(value) for key, value in batch.items()}
    if type(batch) is dict or not isinstance(batch, (dict, UserDict)):
        return items
    try:
        made = copy.copy(batch)  # not by its class: a default factory would be lost
        made.update(items)
    except Exception:  # noqa: BLE001 - because a class may refuse in any way
        return items
    return made
