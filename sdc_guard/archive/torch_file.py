"""Reading the tensors of a `torch.save` file without running anything that is in it.

The pickle inside is read by an unpickler that imports nothing: tensors are rebuilt by our own
code, everything else becomes an inert placeholder.
"""

from __future__ import annotations

import copy
import io
import pickle
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointUnreadable

_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,
}


@dataclass(frozen=True)
class TorchFile:
    """What a `torch.save` file holds.

    Attributes:
        tensors: dotted path in the saved structure to tensor.
        damaged: paths whose record fails its CRC-32, or cannot be read, with the reason. Their
            tensors are among `tensors` when their bytes could be read.
        step: the number under the key "step", if there is one.
    """

    tensors: dict[str, torch.Tensor]
    damaged: dict[str, str]
    step: int | None


@dataclass(frozen=True)
class _StoredTensor:
    key: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_torch_file(path: Path) -> TorchFile:
    """Read a zip-format `torch.save` file.

    Raises:
        CheckpointUnreadable: missing, empty, truncated, or not such a file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.split("/", 1)[-1]: name for name in archive.namelist()}
            structure = _structure(archive, names, path)
            return _load(archive, names, structure)
    except (OSError, zipfile.BadZipFile) as error:
        raise CheckpointUnreadable(
            _why_unreadable(path, error),
            where=str(path),
            next_step="it cannot be judged; use another checkpoint",
        ) from None


def _why_unreadable(path: Path, error: Exception) -> str:
    if not path.exists():
        return "no checkpoint file there"
    if path.is_dir():
        return "a folder, not a torch.save file"
    size = path.stat().st_size
    if size == 0:
        return "unreadable: the file is empty (0 bytes)"
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return f"unreadable: truncated at {size:,} bytes, the zip directory at its end is gone"
    return f"unreadable: not a torch.save zip file ({size:,} bytes; {error})"


def _structure(archive: zipfile.ZipFile, names: dict[str, str], path: Path) -> Any:
    if "data.pkl" not in names:
        raise CheckpointUnreadable("not a torch.save file: no data.pkl inside", where=str(path))
    try:
        return _InertUnpickler(io.BytesIO(_record(archive, names["data.pkl"])[0])).load()
    except Exception as error:  # noqa: BLE001 - because damaged pickles raise errors of every kind
        raise CheckpointUnreadable(
            f"unreadable: the structure of the file is damaged ({type(error).__name__})",
            where=str(path),
        ) from None


def _load(archive: zipfile.ZipFile, names: dict[str, str], structure: Any) -> TorchFile:
    tensors: dict[str, torch.Tensor] = {}
    damaged: dict[str, str] = {}
    records: dict[str, tuple[bytes, bool]] = {}
    for place, stored in _walk(structure, ()):
        record = f"data/{stored.key}"
        try:
            if record not in records:
                records[record] = _record(archive, names[record])
            content, sound = records[record]
            tensors[place] = _rebuild(content, stored)
        except (KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
            damaged[place] = f"record {record} cannot be read ({type(error).__name__})"
            continue
        if not sound:
            damaged[place] = f"CRC mismatch in record {record}"
    step = structure.get("step") if isinstance(structure, dict) else None
    return TorchFile(tensors, damaged, step if isinstance(step, int) else None)


def _record(archive: zipfile.ZipFile, name: str) -> tuple[bytes, bool]:
    """The bytes of a record, and whether they fit its CRC-32; a stored CRC of 0 is an absent one."""
    info = copy.copy(archive.getinfo(name))
    expected = info.CRC
    del info.CRC  # zipfile then leaves the comparison to us: damaged bytes are wanted too
    with archive.open(info) as file:
        content = file.read()
    if len(content) != info.file_size:
        raise zipfile.BadZipFile(f"{len(content)} of {info.file_size} bytes")
    return content, expected in (0, zlib.crc32(content))


def _rebuild(content: bytes, stored: _StoredTensor) -> torch.Tensor:
    if not content:
        return torch.empty(stored.shape, dtype=stored.dtype)
    storage = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(stored.dtype)
    return storage.as_strided(stored.shape, stored.stride, stored.offset)


def _walk(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, _StoredTensor]]:
    if isinstance(node, _StoredTensor):
        yield ".".join(path), node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _walk(value, (*path, str(key)))
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from _walk(value, (*path, str(index)))


class _Inert:
    """Stands for every global that a pickle names: takes any call and any state, does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __call__(self, *_: Any, **__: Any) -> _Inert:
        return self

    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, *_: Any) -> None: ...
    def append(self, _: Any) -> None:
        """Pickle fills lists and their subclasses by this name."""

    def extend(self, _: Any) -> None:
        """Likewise."""


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Any, stride: Any, *rest: Any
) -> _StoredTensor:
    # _rebuild_tensor_v3 passes the dtype, because its storage has none
    dtypes = [item for item in rest if isinstance(item, torch.dtype)]
    dtype = dtypes[0] if dtypes else storage.dtype
    return _StoredTensor(storage.key, dtype, offset, tuple(shape), tuple(stride))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


_REBUILDERS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("collections", "OrderedDict"): OrderedDict,
}


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _REBUILDERS:
            return _REBUILDERS[module, name]
        if module in ("torch", "torch.storage") and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 3 and pid[0] == "storage":
            dtype = pid[1] if isinstance(pid[1], torch.dtype) else torch.uint8
            return _Storage(str(pid[2]), dtype)
        return _Inert()
