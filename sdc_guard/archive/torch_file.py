"""Reading the tensors of a `torch.save` file without running anything that is in it."""

from __future__ import annotations

import copy
import io
import re
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointUnreadable
from .inert_pickle import InertUnpickler, StoredTensor, by_path, stored_tensors

_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled
_LFS = re.compile(rb"version https://git-lfs[^\n]*\n.*?size (\d+)", re.DOTALL)
_ZIP_END = b"PK\x05\x06"
_STRUCTURE = "data.pkl"


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
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except CheckpointUnreadable:
        raise
    except Exception as error:  # noqa: BLE001 - because damaged zip files raise errors of every kind
        raise CheckpointUnreadable(
            _why_unreadable(path, error),
            where=str(path),
            next_step="it cannot be judged; use another checkpoint",
        ) from None


def _read(archive: zipfile.ZipFile, path: Path) -> TorchFile:
    names = {name.split("/", 1)[-1]: name for name in archive.namelist()}
    if _STRUCTURE not in names:
        raise CheckpointUnreadable("not a torch.save file: no data.pkl inside", where=str(path))
    order = _record(archive, names["byteorder"])[0] if "byteorder" in names else b""
    if order not in (b"", sys.byteorder.encode()):
        raise CheckpointUnreadable("saved on a machine of the other byte order", where=str(path))
    damaged: dict[str, str] = {}
    try:
        content, sound = _record(archive, names[_STRUCTURE])
        structure = InertUnpickler(io.BytesIO(content)).load()
        stored = by_path(stored_tensors(structure))
    except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
        raise CheckpointUnreadable(
            f"unreadable: the structure of the file is damaged ({type(error).__name__})",
            where=str(path),
            next_step="it cannot be judged; use another checkpoint",
        ) from None
    if not sound:
        damaged[_STRUCTURE] = f"CRC mismatch in record {_STRUCTURE}"
    tensors = _tensors(archive, names, stored, damaged)
    step = structure.get("step") if isinstance(structure, dict) else None
    return TorchFile(tensors, damaged, step if isinstance(step, int) else None)


def _tensors(
    archive: zipfile.ZipFile,
    names: dict[str, str],
    stored: dict[str, StoredTensor],
    damaged: dict[str, str],
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    storages: dict[str, tuple[torch.Tensor, bool]] = {}
    for place, tensor in stored.items():
        record = f"data/{tensor.key}"
        try:
            if record not in storages:
                storages[record] = _storage(archive, names[record])
            content, sound = storages[record]
            tensors[place] = _rebuild(content, tensor)
        except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
            damaged[place] = f"record {record} cannot be read ({type(error).__name__})"
            continue
        if not sound:
            damaged[place] = f"CRC mismatch in record {record}"
    return tensors


def _storage(archive: zipfile.ZipFile, name: str) -> tuple[torch.Tensor, bool]:
    content, sound = _record(archive, name)
    if not content:
        return torch.empty(0, dtype=torch.uint8), sound
    return torch.frombuffer(bytearray(content), dtype=torch.uint8), sound


def _record(archive: zipfile.ZipFile, name: str) -> tuple[bytes, bool]:
    """The bytes of a record, and whether they fit its CRC-32; a stored CRC of 0 means none."""
    info = copy.copy(archive.getinfo(name))
    expected = info.CRC
    del info.CRC  # zipfile then leaves the comparison to us: damaged bytes are wanted too
    with archive.open(info) as file:
        content = file.read()
    if len(content) != info.file_size:
        raise zipfile.BadZipFile(f"{len(content)} of {info.file_size} bytes")
    return content, expected in (0, zlib.crc32(content))


def _rebuild(content: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    storage = content.view(stored.dtype)
    tensor = storage.as_strided(stored.shape, stored.stride, stored.offset)
    tensor = tensor.conj() if stored.conjugated else tensor
    return torch._neg_view(tensor) if stored.negated else tensor


def _why_unreadable(path: Path, error: Exception) -> str:
    if not path.exists():
        return "no checkpoint file there"
    if path.is_dir():
        return "a folder, not a torch.save file"
    size = path.stat().st_size
    if size == 0:
        return "unreadable: the file is empty (0 bytes)"
    start, end = _ends(path)
    if start.startswith(_LEGACY):
        return "unreadable: the format of torch.save before 1.6, which holds no checksums"
    if pointer := _LFS.match(start):
        return f"a Git LFS pointer; its content ({int(pointer[1]):,} bytes) was not downloaded"
    if start.startswith(b"PK") and _ZIP_END not in end:
        return f"unreadable: truncated at {size:,} bytes, the zip directory at its end is gone"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"unreadable: not a torch.save zip file ({size:,} bytes; {reason})"


def _ends(path: Path) -> tuple[bytes, bytes]:
    try:
        with path.open("rb") as file:
            start = file.read(300)
            file.seek(max(0, path.stat().st_size - 1000))
            return start, file.read()
    except OSError:
        return b"", b""


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
