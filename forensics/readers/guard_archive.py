"""The archive that `guard.checkpoint` writes: a folder per step, with a manifest.

A checkpoint is one file of torch.save, or files of several ranks in the format of DCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.archive.compare import (
    NO_WHOLE,
    OTHER_BYTES,
    REWRITTEN,
    checksum,
    compare_tensors,
    in_words,
    other_file,
    other_size,
    same_but_a_digit,
)
from sdc_guard.archive.confirmations import Confirmation, read_confirmations, settled
from sdc_guard.archive.folders import NAME
from sdc_guard.archive.manifest import FILE, SHARDED, WEIGHTS, Manifest
from sdc_guard.archive.save import STATE_FILE
from sdc_guard.archive.sharded.ack import ack_name
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..checkpoint import Checkpoint
from ..content import Content, Integrity, StoredTensor
from ..doubted import doubted
from . import dcp, guard_sharded
from .findings import as_step
from .listing import is_folder, names_in
from .reader import Reader
from .torch_zip import check_file, open_file

FORMAT: Final = "sdc-guard"
_OTHER_DIGIT: Final = (
    "it changed, and not the file: of the checksum of the whole file one digit is another"
)
_OTHER_SIZE: Final = "it changed, and not the file: the checksum fits, and the size does not"
_WEIGHTS_ALONE: Final = "weights alone: to be judged and compared, not to be resumed from"


def find(path: Path) -> list[Checkpoint]:
    """The checkpoints of a run's folder, of its archive, or one checkpoint's folder."""
    if path.is_file() and (path.parent / FILE).is_file():
        path = path.parent
    if (path / FILE).is_file():
        named = NAME.fullmatch(path.name)
        step = (as_step(named[1]) if named else None) or 0
        return doubted(path.parent, [_describe(path, step, read_confirmations(path.parent))])
    if not path.is_dir():
        return []
    archive = path / "archive" if (path / "archive").is_dir() else path
    known = read_confirmations(archive)
    return doubted(archive, [_describe(folder, step, known) for folder, step in _named(archive)])


def below(path: Path) -> list[Path]:
    """Folders in `path` that hold a guard's checkpoints, or have an archive of them."""
    folders = [path / name for name in sorted(names_in(path)) if is_folder(path / name)]
    return [one for one in folders if any(_named(one)) or any(_named(one / "archive"))]


def _named(archive: Path) -> Iterator[tuple[Path, int]]:
    """The guard's folders in an archive, with the steps in their names."""
    for name in sorted(names_in(archive)):
        match = NAME.fullmatch(name)
        if match and _is_own(archive / name):
            yield archive / name, as_step(match[1]) or 0


def _is_own(folder: Path) -> bool:
    """Whether a folder of that name is the guard's; without a manifest others call theirs so."""
    if not folder.is_dir():
        return False
    names = names_in(folder)
    # what ranks acknowledged nobody else has
    return FILE in names or not names - {STATE_FILE} or ack_name(0) in names


def _describe(folder: Path, named_step: int, confirmations: list[Confirmation]) -> Checkpoint:
    try:
        manifest = settled(folder, Manifest.read(folder), confirmations)
    except CheckpointUnreadable as error:
        reason = f"incomplete: {error.what}"
        return Checkpoint(named_step, folder, FORMAT, "untested", (reason,), readable=False)
    if manifest.format == SHARDED:
        return guard_sharded.describe(folder, manifest, FORMAT)
    file = folder / manifest.file
    size = file.stat().st_size if file.is_file() else 0
    if size < manifest.bytes:
        kind = "truncated" if size else "empty or missing"
        reason = f"unreadable: {kind} ({size:,} of {manifest.bytes:,} bytes)"
        return Checkpoint(
            manifest.step, folder, FORMAT, "untested", (reason,), manifest.attempt, readable=False
        )
    alone = manifest.format == WEIGHTS
    notes = (_WEIGHTS_ALONE,) if alone else () if manifest.xxh3 else (NO_WHOLE,)
    return Checkpoint(
        manifest.step, folder, FORMAT, manifest.status, manifest.reasons, manifest.attempt,
        notes=notes, resumable=not alone,
    )  # fmt: skip


def open_checkpoint(checkpoint: Checkpoint) -> Content:
    """What its file holds, lazily; its step is the manifest's.

    Raises:
        CheckpointUnreadable: manifest or file is damaged, or missing.
    """
    manifest = Manifest.read(checkpoint.path)
    if manifest.format == SHARDED:
        return replace(dcp.open_content(checkpoint), step=manifest.step)
    return replace(open_file(checkpoint.path / manifest.file), step=manifest.step)


def check(checkpoint: Checkpoint) -> Integrity:
    """Read every byte, and compare it with the manifest's checksums and the file's.

    Size and checksum of the whole file come first. A file that is not the one which was written is
    damaged, whatever else of it can be read. One that is, and that was compared with the digests
    when it was sealed, needs no more. Otherwise a tensor is intact if what there is of the two
    holds.

    Raises:
        CheckpointUnreadable: manifest or file is damaged, or missing; what of a file that is not
            the one which was written cannot be read does not raise.
    """
    manifest = Manifest.read(checkpoint.path)
    if manifest.format == SHARDED:
        return guard_sharded.check(checkpoint.path, manifest)
    file = checkpoint.path / manifest.file
    size, other = other_file(file, manifest), ""
    found = checksum(file) if manifest.xxh3 and file.is_file() else ""
    if found and same_but_a_digit(found, manifest.xxh3) and (size or found != manifest.xxh3):
        what = _OTHER_SIZE if size else _OTHER_DIGIT
        return _of_a_changed_manifest(_by_tensor(file, manifest), what)
    if size is not None:
        other = other_size(*size)
    elif found:
        if found != manifest.xxh3:
            other = REWRITTEN
        elif manifest.status == "clean":
            return Integrity({}, tuple(open_file(file).tensors), (), manifest.bytes)
    try:
        read = _by_tensor(file, manifest)
    except CheckpointUnreadable as error:
        if not other:
            raise
        if size is not None:
            return Integrity({manifest.file: other}, (), (), size[0])
        return Integrity({manifest.file: f"{OTHER_BYTES}; {error.what}"}, (), (), manifest.bytes)
    if other and not (other is REWRITTEN and read.damaged):
        return replace(read, damaged={manifest.file: other, **read.damaged})
    return read


def _of_a_changed_manifest(found: Integrity, why: str) -> Integrity:
    """That the file is the one which was written, and the manifest is not what it was."""
    return replace(found, unchecked=(*found.unchecked, FILE), why={**found.why, FILE: why})


def _by_tensor(file: Path, manifest: Manifest) -> Integrity:
    """Each tensor against its record's checksum and the manifest's digest."""
    content, stored = open_file(file), check_file(file)
    damaged = dict(stored.damaged)
    for name, entry in manifest.tensors.items():
        source = content.tensors.get(content.aliases.get(name, name))
        if name in damaged and source is not None:
            damaged[name] += _element(name, source, manifest)
        if name in damaged or name in stored.why:
            continue
        if source is None:
            damaged[name] = "not in the file"
            continue
        try:
            found = compare_tensors({name: source.read()}, replace(manifest, tensors={name: entry}))
        except ReadFailed:
            raise
        except CheckpointUnreadable as error:
            damaged[name] = error.what
            continue
        if found.mismatches:
            damaged[name] = found.reasons()[0].removeprefix(f"{name}: ")
    proven = {name for name in manifest.tensors if name not in damaged and name not in stored.why}
    sound = {*proven, *stored.intact} - damaged.keys()
    intact = tuple(name for name in content.tensors if name in sound)
    unchecked = tuple(name for name in stored.unchecked if name not in sound | damaged.keys())
    return Integrity(damaged, intact, unchecked, stored.bytes, stored.why)


def _element(name: str, source: StoredTensor, manifest: Manifest) -> str:
    """Which element of a damaged tensor changed, by the manifest's digest, where it is one."""
    try:
        one = replace(manifest, tensors={name: manifest.tensors[name]})
        found = compare_tensors({name: source.read()}, one)
    except ReadFailed:
        raise
    except CheckpointUnreadable:
        return ""
    return in_words(found.mismatches[0].change) if found.mismatches else ""


READER: Final = Reader(format=FORMAT, find=find, open=open_checkpoint, check=check)
