"""What a checkpoint's files hold, whoever wrote them: tensors, read one at a time, nothing run.

Names are those that `sdc-bisect` has for the same tensors, so that a seal's are understood there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import torch

from ...errors import CheckpointUnreadable, ReadFailed
from ..dcp.dcp_metadata import FILE as METADATA
from ..dcp.dcp_metadata import read_metadata
from ..dcp.dcp_tensors import stored_tensor, tensor_within
from ..dcp.dcp_values import found_in
from ..extent import read_extent
from ..inert_pickle import StoredTensor
from ..inventory import inventory
from ..read_trouble import raise_trouble
from ..regular_file import open_regular
from ..reused_buffers import fresh_buffer
from ..safetensors_forms import torch_form
from ..safetensors_header import Entry, read_header
from ..torch_damage import LEGACY, head_of
from ..torch_records import STRUCTURE, TorchRecords, torch_records, torch_structure
from .files import files_of
from .hf_boxes import NAME as BOXES
from .hf_boxes import boxed

HF_PART: Final = re.compile(
    r"(optimizer|scheduler|scaler)\.pt|(optimizer)\.bin|(rng_state(?:_\d+)?)\.pth"
)
"""Files that the Hugging Face Trainer writes beside the weights; the group is the part's name."""
_HF_FOLDER: Final = re.compile(r"checkpoint-\d+")
_HF_STATE: Final = "trainer_state.json"
_HF_WEIGHTS: Final = (
    "model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin",
)  # fmt: skip
_DCP_SHARD: Final = ".distcp"
_SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_SHARD: Final = re.compile(r"(?!shard-\d+-).+-\d{5,}-of-\d{5,}\.safetensors")


@dataclass(frozen=True)
class Held:
    """A tensor in a file, not read yet.

    Attributes:
        dtype: of its elements.
        shape: of it.
        read: reads it, as a CPU tensor; raises CheckpointUnreadable.
        crc: whether its bytes fit the file's own CRC-32; None where there is none. Reads them.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    crc: Callable[[], bool | None] = lambda: None


@dataclass(frozen=True)
class Contents:
    """What was found in a checkpoint.

    Attributes:
        format: its name, as `sdc-bisect` has it; "files" of what it has none for.
        tensors: by name.
        unread: file to why its tensors cannot be told.
    """

    format: str
    tensors: Mapping[str, Held]
    unread: Mapping[str, str] = field(default_factory=dict)


def contents_of(path: Path) -> Contents:
    """What the checkpoint at `path` holds.

    Args:
        path: a file of torch.save or safetensors, a Lightning .ckpt, a Trainer's checkpoint-N, a
            folder of shards, a directory of DCP, or any folder with such files in it.

    Raises:
        CheckpointUnreadable: there is nothing.
    """
    if path.is_file():
        return _joined(_format_of(path), [("", path)])
    files = dict(files_of(path))
    if not files:
        raise CheckpointUnreadable("nothing there to seal", where=str(path))
    names = {name for name in files if "/" not in name}
    if METADATA in names or any(name.endswith(_DCP_SHARD) for name in names):
        return _of_dcp(path)
    if _HF_STATE in names or _HF_FOLDER.fullmatch(path.name):
        return _with_dcp(_joined("hf-trainer", _of_trainer(path, names)), path, files)
    shards = sorted(name for name in names if _SHARD.fullmatch(name))
    if shards:
        return _joined("safetensors-sharded", [("", path / name) for name in shards])
    boxes = [name for name in names if BOXES.fullmatch(name)]
    if boxes:
        found, unread = boxed(path, boxes, torch_form, _read_entry)
        held = {name: Held(one.dtype, one.shape, one.read) for name, one in found.items()}
        return Contents("dcp-hf", held, unread)
    parts = [
        (f"{file.relative_to(path).with_suffix('').as_posix()}/", file)
        for file in files.values()
        if file.suffix in _SUFFIXES
    ]
    return _with_dcp(_joined("files", parts), path, files)


def _with_dcp(known: Contents, path: Path, files: Mapping[str, Path]) -> Contents:
    """The same, and what DCP's directories below it hold, after their names.

    Accelerate, and with it the Trainer, saves a model under FSDP in `pytorch_model_fsdp_0`, and its
    optimizer's state in `optimizer_0`.
    """
    tensors, unread = dict(known.tensors), dict(known.unread)
    own = (file for file in files.values() if file.name == METADATA or file.suffix == _DCP_SHARD)
    for folder in sorted({file.parent for file in own}):
        prefix = f"{folder.relative_to(path).as_posix()}/"
        inner = _of_dcp(folder)
        tensors |= {prefix + name: held for name, held in inner.tensors.items()}
        unread |= {prefix + name: why for name, why in inner.unread.items()}
    return Contents(known.format, tensors, unread)


def _of_dcp(folder: Path) -> Contents:
    """The tensors of a directory of DCP, each put together from the ranks' parts of it."""
    try:
        metadata = read_metadata(folder)
    except CheckpointUnreadable as error:
        return Contents("dcp", {}, {METADATA: error.what})
    found = {name: stored_tensor(folder, name, item) for name, item in metadata.tensors.items()}
    for name, (source, stub) in found_in(folder, metadata).tensors.items():
        found.setdefault(name, tensor_within(source, folder, name, stub))
    tensors = {name: Held(one.dtype, one.shape, one.read) for name, one in found.items()}
    return Contents("dcp", tensors)


def _format_of(file: Path) -> str:
    if file.suffix == ".safetensors":
        return "safetensors"
    if head_of(file).startswith(LEGACY):
        return "torch-legacy"
    return "lightning" if file.suffix == ".ckpt" else "torch"


def _of_trainer(folder: Path, names: set[str]) -> list[tuple[str, Path]]:
    """Prefix and file of the weights and of what lies beside them."""
    single = [name for name in _HF_WEIGHTS if name in names][:1]
    weights: list[str] = [*single] or sorted(name for name in names if _SHARD.fullmatch(name))
    parts = [
        (f"{next(filter(None, match.groups()))}.", folder / name)
        for name in sorted(names)
        if (match := HF_PART.fullmatch(name))
    ]
    return [*(("", folder / name) for name in weights), *parts]


def _joined(format: str, parts: list[tuple[str, Path]]) -> Contents:
    tensors: dict[str, Held] = {}
    unread: dict[str, str] = {}
    for prefix, file in parts:
        try:
            found = _in_file(file)
        except ReadFailed:
            raise
        except CheckpointUnreadable as error:
            unread[file.name] = error.what
            continue
        for name, held in found.items():
            tensors.setdefault(prefix + name, held)
    return Contents(format, tensors, unread)


def _in_file(file: Path) -> dict[str, Held]:
    if file.suffix == ".safetensors":
        header = read_header(file)
        if header.trouble:
            raise CheckpointUnreadable(header.trouble, where=str(file))
        return {entry.name: _entry(file, header.start, entry) for entry in header.entries}
    if head_of(file).startswith(LEGACY):
        what = "the format of torch.save before 1.6, whose tensors are not compared here"
        raise CheckpointUnreadable(what, where=str(file))
    return _in_torch_file(file)


def _in_torch_file(file: Path) -> dict[str, Held]:
    records = torch_records(file)
    structure = torch_structure(records)
    if structure.sound is False:
        raise CheckpointUnreadable(f"CRC mismatch in record {STRUCTURE}", where=str(file))
    try:
        found = inventory(structure.root, structure.size).tensors
    except RecursionError as error:
        raise CheckpointUnreadable(f"its structure is damaged ({error})", where=str(file)) from None
    return {
        name: Held(
            stored.dtype, stored.shape,
            partial(_stored, records, stored), partial(_sound, records, f"data/{stored.key}"),
        )
        for name, stored in found.items()
    }  # fmt: skip


def _stored(records: TorchRecords, stored: StoredTensor) -> torch.Tensor:
    record = f"data/{stored.key}"
    try:
        size = records.records[record].file_size
        return read_extent(stored, size, partial(records.read, record))
    except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
        raise_trouble(error, records.path, f"record {record}")
        raise _unreadable(records.path, f"record {record}", error) from None


def _sound(records: TorchRecords, record: str) -> bool | None:
    try:
        return records.sound(record)
    except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
        raise_trouble(error, records.path, f"record {record}")
        raise _unreadable(records.path, f"record {record}", error) from None


def _entry(file: Path, start: int, entry: Entry) -> Held:
    dtype, shape = torch_form(entry)
    return Held(dtype, shape, partial(_mapped, file, start, entry, dtype, shape))


def _read_entry(file: Path, start: int, entry: Entry) -> torch.Tensor:
    return _mapped(file, start, entry, *torch_form(entry))


def _mapped(
    file: Path, start: int, entry: Entry, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Read and not mapped: a file that another program cuts short would end the process."""
    content = fresh_buffer(entry.end - entry.begin)
    try:
        with open_regular(file) as opened:
            opened.seek(start + entry.begin)
            count = opened.readinto(content)
    except OSError as error:
        raise_trouble(error, file, f"tensor {entry.name}")
        raise _unreadable(file, f"tensor {entry.name}", error) from None
    if count < len(content):
        short = f"tensor {entry.name}: {count:,} of its {len(content):,} bytes are there"
        raise CheckpointUnreadable(short, where=str(file))
    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(shape)


def _unreadable(file: Path, what: str, error: Exception) -> CheckpointUnreadable:
    why = str(error) or type(error).__name__
    return CheckpointUnreadable(f"{what} cannot be read ({why})", where=str(file))
