"""A seal beside a checkpoint that another program wrote: what its files were when it was sealed.

The checkpoint's own files are never touched. The seal of `step-100.pt` is
`step-100.pt.sdc-seal.json` beside it, that of a folder lies beside the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import xxhash

from sdc_guard.errors import CheckpointUnreadable, UsageError
from sdc_guard.store.atomic import publish_text

from .checkpoint import Checkpoint
from .content import Integrity
from .seal_tensors import SealedTensor, sealed_tensors

SCHEMA: Final = "sdc-bisect/seal/2"
_WITHOUT_DIGESTS: Final = "sdc-bisect/seal/1"
SUFFIX: Final = ".sdc-seal.json"
_XXH3 = re.compile(r"[0-9a-f]{32}")
_PIECE: Final = 4 << 20  # bytes read at once


@dataclass(frozen=True)
class Seal:
    """What was there when a checkpoint was sealed.

    Attributes:
        step: of the checkpoint.
        format: its name.
        files: path below the checkpoint's own, to size in bytes and xxh3-128 in hexadecimal.
        tensors: the names of those that the files hold.
        digests: of those whose digest was taken; {} in seals of version 1.
    """

    step: int
    format: str
    files: Mapping[str, tuple[int, str]]
    tensors: tuple[str, ...]
    digests: Mapping[str, SealedTensor] = field(default_factory=dict)


def seal_path(checkpoint: Checkpoint) -> Path:
    """Where the seal of a checkpoint lies."""
    return checkpoint.path.with_name(checkpoint.path.name + SUFFIX)


def write_seal(checkpoint: Checkpoint, tensors: tuple[str, ...]) -> Seal:
    """Seal a checkpoint as it is now.

    Raises:
        CheckpointUnreadable: a file of it cannot be read.
        UsageError: the seal cannot be written.
    """
    files = dict(_hashed(checkpoint.path))
    digests = sealed_tensors(checkpoint)
    seal = Seal(checkpoint.step, checkpoint.format, files, tensors, digests)
    content = {
        "schema": SCHEMA,
        "step": seal.step,
        "format": seal.format,
        "files": {name: list(entry) for name, entry in files.items()},
        "tensors": list(tensors),
        "digests": {name: one.as_dict() for name, one in digests.items()},
    }
    place = seal_path(checkpoint)
    try:
        publish_text(place, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UsageError(
            f"the seal cannot be written ({error.strerror})", where=str(place)
        ) from None
    return seal


def read_seal(checkpoint: Checkpoint) -> Seal | None:
    """The seal of a checkpoint; None if there is none.

    Raises:
        CheckpointUnreadable: it is damaged, or of a newer version.
    """
    place = seal_path(checkpoint)
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        return _parsed(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadable(
            f"its seal cannot be read ({type(error).__name__})", where=str(place)
        ) from None


def _parsed(content: dict[str, Any]) -> Seal:
    if content["schema"] not in (SCHEMA, _WITHOUT_DIGESTS):
        raise ValueError("of another version")
    files = {
        str(name): (_whole(size), str(value)) for name, (size, value) in content["files"].items()
    }
    if not files or not all(_XXH3.fullmatch(value) for _, value in files.values()):
        raise ValueError("a checksum that is none")
    tensors = tuple(map(str, content["tensors"]))
    stored = content["digests"] if content["schema"] == SCHEMA else {}
    digests = {str(name): SealedTensor.of_dict(one) for name, one in stored.items()}
    return Seal(_whole(content["step"]), str(content["format"]), files, tensors, digests)


def _whole(value: object) -> int:
    """A step, or bytes: below 2^63, as stores keep them."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no step or size where one belongs")
    return value


@dataclass(frozen=True)
class Compared:
    """What there is against a seal.

    Attributes:
        seal: the seal.
        changed: file to how it is another one than that which was sealed.
        added: whether there are files that were not sealed.
        bytes: that were read.
    """

    seal: Seal
    changed: Mapping[str, str]
    added: bool
    bytes: int

    @property
    def holds(self) -> bool:
        """Whether there is what was sealed, and nothing else."""
        return not self.changed and not self.added


def compare_with_seal(checkpoint: Checkpoint) -> Compared | None:
    """Every byte of a checkpoint against its seal; None if it has none.

    It asks nothing of what the bytes mean: a file that no reader can make anything of any more is
    compared as well.

    Raises:
        CheckpointUnreadable: a file cannot be read, or the seal is damaged or of a newer version.
    """
    seal = read_seal(checkpoint)
    if seal is None:
        return None
    files = dict(_files(checkpoint.path))
    changed: dict[str, str] = {}
    count = 0
    for name, (size, value) in seal.files.items():
        if name not in files:
            changed[name] = "missing, and it was there when it was sealed"
            continue
        there = _size(files[name])
        if there != size:
            changed[name] = f"{there:,} of {size:,} bytes that were sealed"
            if there > size:
                changed[name] = f"{there:,} bytes, and {size:,} were sealed"
            continue
        count += size
        if _hash(name, files[name])[1] != value:
            changed[name] = "not the bytes that were sealed"
    return Compared(seal, changed, bool(files.keys() - seal.files.keys()), count)


def with_seal(found: Integrity, compared: Compared | None) -> Integrity:
    """What reading a checkpoint showed, with what its seal proves; as it was without one."""
    if compared is None:
        return found
    if damaged := {**compared.changed, **found.damaged}:
        return replace(found, damaged=damaged)
    return Integrity({}, (*found.intact, *found.unchecked), (), found.bytes)


def with_sealed_step(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, of the step that it was sealed with: what is in it may have changed since."""
    try:
        seal = read_seal(checkpoint)
    except CheckpointUnreadable:
        return checkpoint
    if seal is None or seal.step == checkpoint.step:
        return checkpoint
    note = f"now it says step {checkpoint.step}, and {seal.step} when it was sealed"
    named = None if checkpoint.named_step == seal.step else checkpoint.named_step
    return replace(checkpoint, step=seal.step, named_step=named, notes=(*checkpoint.notes, note))


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a checkpoint by their names below it."""
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        yield file.relative_to(path).as_posix(), file


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file.name, file, error) from None


def _hashed(path: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Name, size and xxh3-128 of each file of a checkpoint."""
    for name, file in _files(path):
        yield name, _hash(name, file)


def _hash(name: str, file: Path) -> tuple[int, str]:
    buffer = memoryview(bytearray(_PIECE))
    state, size = xxhash.xxh3_128(), 0
    try:
        with file.open("rb", buffering=0) as content:
            while count := content.readinto(buffer):
                state.update(buffer[:count])
                size += count
    except OSError as error:
        raise _unreadable(name, file, error) from None
    return size, state.hexdigest()


def _unreadable(name: str, file: Path, error: OSError) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{name} cannot be read ({error.strerror})", where=str(file))
