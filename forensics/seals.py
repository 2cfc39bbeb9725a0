"""A seal beside a checkpoint that another program wrote: what its files were when it was sealed.

The checkpoint's own files are never touched. The seal of `step-100.pt` is
`step-100.pt.sdc-seal.json` beside it, that of a folder lies beside the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from sdc_guard.errors import CheckpointUnreadable, UsageError
from sdc_guard.store.atomic import publish_text

from .checkpoint import Checkpoint
from .content import Integrity
from .seal_tensors import SealedTensor, sealed_tensors, with_named_tensors

SCHEMA: Final = "sdc-bisect/seal/2"
_WITHOUT_DIGESTS: Final = "sdc-bisect/seal/1"
SUFFIX: Final = ".sdc-seal.json"
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
    files = {str(name): (int(size), str(value)) for name, (size, value) in content["files"].items()}
    tensors = tuple(map(str, content["tensors"]))
    stored = content["digests"] if content["schema"] == SCHEMA else {}
    digests = {str(name): SealedTensor.of_dict(one) for name, one in stored.items()}
    return Seal(int(content["step"]), str(content["format"]), files, tensors, digests)


def with_seal(checkpoint: Checkpoint, found: Integrity) -> Integrity:
    """What reading a checkpoint showed, with what its seal proves; as it was without one."""
    try:
        seal = read_seal(checkpoint)
    except CheckpointUnreadable as error:
        return Integrity(
            {**found.damaged, seal_path(checkpoint).name: error.what},
            found.intact,
            found.unchecked,
            found.bytes,
        )
    if seal is None:
        return found
    damaged = {**found.damaged, **_changed(checkpoint.path, seal)}
    if damaged:
        changed = Integrity(damaged, found.intact, found.unchecked, found.bytes)
        return with_named_tensors(checkpoint, changed, seal.digests)
    return Integrity({}, (*found.intact, *found.unchecked), (), found.bytes)


def _changed(path: Path, seal: Seal) -> dict[str, str]:
    """Files that are not as they were, and how."""
    try:
        now = dict(_hashed(path))
    except CheckpointUnreadable as error:
        return {path.name: error.what}
    wrong = {}
    for name, (size, value) in seal.files.items():
        if name not in now:
            wrong[name] = "missing, and it was there when it was sealed"
        elif now[name][0] != size:
            wrong[name] = f"{now[name][0]:,} bytes, and {size:,} when it was sealed"
        elif now[name][1] != value:
            wrong[name] = "not the bytes that were sealed"
    return wrong


def _hashed(path: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Name, size and xxh3-128 of each file of a checkpoint."""
    files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    buffer = memoryview(bytearray(_PIECE))
    for file in files:
        name = file.name if file == path else file.relative_to(path).as_posix()
        state, size = xxhash.xxh3_128(), 0
        try:
            with file.open("rb", buffering=0) as content:
                while count := content.readinto(buffer):
                    state.update(buffer[:count])
                    size += count
        except OSError as error:
            raise CheckpointUnreadable(
                f"{name} cannot be read ({error.strerror})", where=str(file)
            ) from None
        yield name, (size, state.hexdigest())
