"""A seal beside a checkpoint that another program wrote: what its files were when it was sealed.

The checkpoint's own files are never touched. The seal of `step-100.pt` is
`step-100.pt.sdc-seal.json` beside it, that of a folder lies beside the folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from sdc_guard.archive.compare import same_but_a_digit
from sdc_guard.errors import CheckpointUnreadable

from .checkpoint import Checkpoint
from .content import Integrity
from .seal_file import Seal, put_seal, read_seal
from .seal_tensors import sealed_tensors

_PIECE: Final = 4 << 20  # bytes read at once
_OTHER: Final = "not the bytes that were sealed"
_SEAL_CHANGED: Final = "its seal itself changed, and has no checksum of itself (version 1)"
_VERSION_1: Final = "by a seal of version 1, which has no checksum of itself"


def write_seal(checkpoint: Checkpoint, tensors: tuple[str, ...]) -> Seal:
    """Seal a checkpoint as it is now.

    Raises:
        CheckpointUnreadable: a file of it cannot be read.
        UsageError: the seal cannot be written.
    """
    files = dict(_hashed(checkpoint.path))
    digests = sealed_tensors(checkpoint)
    seal = Seal(
        checkpoint.step, checkpoint.format, files, tensors, digests,
        checkpoint.path.name, float(int(time.time())), True,
    )  # fmt: skip
    put_seal(checkpoint, seal)
    return seal


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
    compared as well. A seal that came along with another name fits where the bytes do.

    Raises:
        CheckpointUnreadable: a file cannot be read, or the seal is no testimony: damaged, of a
            newer version, or of another checkpoint.
    """
    seal = read_seal(checkpoint)
    if seal is None:
        return None
    found = _compared(checkpoint, seal)
    if found.changed and (why := _no_testimony(checkpoint, found)):
        raise CheckpointUnreadable(why, where=str(checkpoint.path))
    return found


def _compared(checkpoint: Checkpoint, seal: Seal) -> Compared:
    files = dict(_files(checkpoint.path))
    sealed = dict(seal.files)
    if len(sealed) == 1 and checkpoint.path.is_file():
        sealed = dict(zip(files, sealed.values(), strict=True))  # whatever it was called then
    changed: dict[str, str] = {}
    count = 0
    for name, (size, value) in sealed.items():
        if name not in files:
            changed[name] = "missing, and it was there when it was sealed"
            continue
        there = _size(files[name])
        if there == size or not seal.checked:
            count += there
            found = _hash(name, files[name])[1]
            if found == value and there == size:
                continue
            if not seal.checked and same_but_a_digit(found, value):
                raise CheckpointUnreadable(_SEAL_CHANGED, where=str(checkpoint.path))
        changed[name] = _other_size(there, size) if there != size else _OTHER
        if not seal.checked:
            changed[name] += f", {_VERSION_1}"
    return Compared(seal, changed, bool(files.keys() - sealed.keys()), count)


def _other_size(there: int, size: int) -> str:
    if there > size:
        return f"{there:,} bytes, and {size:,} were sealed"
    return f"{there:,} of {size:,} bytes that were sealed"


def _no_testimony(checkpoint: Checkpoint, found: Compared) -> str:
    """Why a seal that does not fit convicts nothing; "" if it does."""
    seal = found.seal
    if not _is_of(checkpoint, seal):
        return f"its seal is of another file ({_sealed_name(seal)}), and says nothing of this one"
    if not seal.checked and seal.step != checkpoint.step and len(found.changed) == len(seal.files):
        return f"its seal is of another step ({seal.step}, version 1), and says nothing of this one"
    if not seal.checked and found.added and any("missing" in why for why in found.changed.values()):
        return "its seal names other files, and has no checksum of itself (version 1)"
    return ""


def _is_of(checkpoint: Checkpoint, seal: Seal) -> bool:
    """Whether a seal is of a checkpoint of that name; what version 1 does not say counts as so."""
    return _sealed_name(seal) in ("", checkpoint.path.name) or (
        not seal.name and checkpoint.path.is_dir()
    )


def _sealed_name(seal: Seal) -> str:
    return seal.name or (next(iter(seal.files)) if len(seal.files) == 1 else "")


def with_seal(found: Integrity, compared: Compared | None) -> Integrity:
    """What reading a checkpoint showed, with what its seal proves; as it was without one."""
    if compared is None:
        return found
    if damaged := {**compared.changed, **found.damaged}:
        return replace(found, damaged=damaged)
    return Integrity({}, (*found.intact, *found.unchecked), (), found.bytes)


def saved_anew(seal: Seal) -> str:
    """What may have become of a file that is another one, and sound by itself."""
    when = f" (seal of {seal.day})" if seal.day else ""
    return f"or it was saved anew since it was sealed{when}: then seal it again with --again"


def with_sealed_step(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, of the step that it was sealed with: what is in it may have changed since.

    Where the seal fits its own checksum and is of a checkpoint of that name, or, of version 1,
    where the name says that step, too.
    """
    try:
        seal = read_seal(checkpoint)
    except CheckpointUnreadable:
        return checkpoint
    if seal is None or seal.step == checkpoint.step:
        return checkpoint
    if not _is_of(checkpoint, seal) or not (seal.checked or checkpoint.named_step == seal.step):
        note = f"its seal says step {seal.step}: of another file, or changed"
        return replace(checkpoint, notes=(*checkpoint.notes, note))
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
