"""Reading the tensors of a `torch.save` file without running anything that is in it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointUnreadable
from .inert_pickle import StoredTensor, by_path, stored_tensors
from .read_trouble import raise_trouble
from .torch_records import NEXT_STEP, STRUCTURE, TorchRecords, torch_records, torch_structure


@dataclass(frozen=True)
class TorchFile:
    """What a `torch.save` file holds.

    Attributes:
        tensors: dotted path in the saved structure to tensor; those that share a storage share
            it here.
        damaged: paths whose record fails its CRC-32, or cannot be read, with the reason. Their
            tensors are among `tensors` when their bytes could be read. "data.pkl" stands for
            the structure itself: names, shapes and plain numbers.
        step: the number under the key "step", if there is one.
    """

    tensors: dict[str, torch.Tensor]
    damaged: dict[str, str]
    step: int | None


def read_torch_file(path: Path) -> TorchFile:
    """Read a zip-format `torch.save` file.

    Raises:
        CheckpointUnreadable: missing, empty, truncated, or not such a file.
        ReadFailed: the disk, the network or the memory fails, which shows nothing of its bytes.
    """
    records = torch_records(path)
    structure = torch_structure(records)
    try:
        stored = by_path(stored_tensors(structure.root, structure.size))
    except RecursionError as error:
        raise CheckpointUnreadable(
            f"unreadable: the structure of the file is damaged ({error})",
            where=str(path),
            next_step=NEXT_STEP,
        ) from None
    damaged: dict[str, str] = {}
    if structure.sound is False:
        damaged[STRUCTURE] = f"CRC mismatch in record {STRUCTURE}"
    tensors = _tensors(records, stored, damaged)
    root = structure.root
    step = root.get("step") if isinstance(root, dict) else None
    return TorchFile(tensors, damaged, step if isinstance(step, int) else None)


def _tensors(
    records: TorchRecords, stored: dict[str, StoredTensor], damaged: dict[str, str]
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    storages: dict[str, tuple[torch.Tensor, bool]] = {}
    for place, tensor in stored.items():
        record = f"data/{tensor.key}"
        try:
            if record not in storages:
                storages[record] = _storage(records, record)
            content, sound = storages[record]
            tensors[place] = rebuild(content, tensor)
        except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
            raise_trouble(error, records.path, f"record {record}")
            damaged[place] = f"record {record} cannot be read ({type(error).__name__})"
            continue
        if not sound:
            damaged[place] = f"CRC mismatch in record {record}"
    return tensors


def _storage(records: TorchRecords, name: str) -> tuple[torch.Tensor, bool]:
    content = records.read(name)
    sound = records.records[name].CRC in (0, zlib.crc32(content))
    if not content:
        return torch.empty(0, dtype=torch.uint8), sound
    return torch.frombuffer(content, dtype=torch.uint8), sound


def rebuild(content: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """The tensor that a storage holds.

    Args:
        content: the storage's bytes, uint8.

    Raises:
        RuntimeError: it reaches out of the storage, or is none.
    """
    storage = content.view(stored.dtype)
    tensor = storage.as_strided(stored.shape, stored.stride, stored.offset)
    tensor = tensor.conj() if stored.conjugated else tensor
    return torch._neg_view(tensor) if stored.negated else tensor


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has memory of its own to read: no sparse, quantized or meta tensor, and
    none that only stands for others, as a distributed one does."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_nested
        and (tensor.data_ptr() != 0 or not tensor.numel())
    )
