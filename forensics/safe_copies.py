"""Copies of checkpoints that a replay may write over, and putting the originals back from them.

The copies lie in the session's folder. Their list is published when all of them are proven, and
before anything is replayed: who finds a list knows that a replay may have written over those
files, and who finds copies without one that nothing ran. A list counts in the very folder that it
was made in, which it names by inode: in a copy of a run, or in one of a stranger's making, it would
have files elsewhere replaced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import xxhash

from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.errors import UsageError
from sdc_guard.store.atomic import fsync_file, fsync_folder, publish_text

from .checkpoint import Checkpoint

FOLDER: Final = "safe-copies"
_LIST: Final = "list.json"
_FICLONE: Final = 0x40049409  # ioctl_ficlone(2): the copy shares the blocks of the original
_RESERVE: Final = 1 << 28  # bytes left free beside the copies, for what the replay itself writes
_BLOCK: Final = 1 << 22


@dataclass(frozen=True)
class Kept:
    """One file and its copy.

    Attributes:
        file: the file, links resolved.
        name: of what is put back, in words.
        within: whether it lies in the guard's archive: what is gone there a retention deleted.
        copy: name of its copy.
        state: size in bytes, times of change of content and of inode in ns, and inode.
        xxh3: xxh3-128 of its bytes.
    """

    file: str
    name: str
    within: bool
    copy: str
    state: tuple[int, int, int, int]
    xxh3: str


def keep(
    session: Path, required: Sequence[Checkpoint], archive: Sequence[Checkpoint], overwrite: bool
) -> bool:
    """Copy the files of checkpoints and their seals into a session's folder.

    Args:
        session: its folder.
        required: those that have to be kept.
        archive: those of the guard's archive, into which a replay's guard does not write; kept
            too where there is room.
        overwrite: whether to go on where there is no room.

    Returns:
        whether the required ones are kept.

    Raises:
        UsageError: there is no room, or a file cannot be copied, and not `overwrite`; or copies
            of an earlier replay are there.
    """
    folder = session / FOLDER
    if is_kept(session):
        raise UsageError(
            "copies of checkpoints that an earlier replay wrote over are not put back yet",
            where=str(folder),
            next_step="put them back by hand (list.json says where to), and remove that folder",
        )
    shutil.rmtree(folder, ignore_errors=True)  # without a list nothing ran since
    kept: list[Kept] = []
    done = True
    for checkpoints, within in ((required, False), (archive, True)):
        files = _files(checkpoints)
        if not files:
            continue
        folder.mkdir(exist_ok=True)
        try:
            kept += _copied(folder, files, within, len(kept))
        except UsageError:
            if not within and not overwrite:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            done = done and within
    if kept:
        fsync_folder(folder)
        content = {"inode": folder.stat().st_ino, "files": [asdict(one) for one in kept]}
        publish_text(folder / _LIST, json.dumps(content, indent=1) + "\n")
    return done


def is_kept(session: Path) -> bool:
    """Whether a session has copies from which originals may have to be put back."""
    return (session / FOLDER / _LIST).is_file()


def put_back(session: Path) -> list[str]:
    """Put the originals back where they are others now, and remove the copies.

    Returns:
        lines to tell; none where nothing was changed. Copies of what cannot be put back stay.
    """
    folder = session / FOLDER
    try:
        content = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        if content["inode"] != folder.stat().st_ino:
            return [f"safe copies that were made in another folder are not put back: {folder}"]
        kept = [Kept(**{**one, "state": tuple(one["state"])}) for one in content["files"]]
    except FileNotFoundError:
        shutil.rmtree(folder, ignore_errors=True)
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [f"the list of safe copies cannot be read ({error}); they stay in {folder}"]
    names, failed = [], []
    for one in kept:
        try:
            if _was_changed(one):
                _restore(folder / one.copy, one)
                names.append(one.name)
        except OSError as error:
            failed.append(
                f"{one.name} may have been written over by the replay, and was not put back "
                f"({error.strerror or error}): its copy stays in {folder / one.copy}"
            )
    if not failed:
        (folder / _LIST).unlink()
        shutil.rmtree(folder, ignore_errors=True)
    return [*_told(names), *failed]


def _told(names: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(names))
    names = [
        one for one in names if one.removeprefix(_SEAL) == one or one[len(_SEAL) :] not in names
    ]
    if not names:
        return []
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    was, them = ("was", "it") if len(names) == 1 else ("were", "them")
    return [
        f"{listed} {was} written over by the replay, and put back as the training had saved {them}"
    ]


_SEAL: Final = "the seal of "


def _files(checkpoints: Sequence[Checkpoint]) -> dict[Path, str]:
    """Every file to be kept, and its name in words."""
    found: dict[Path, str] = {}
    for one in checkpoints:
        path = one.path
        inside = [path] if path.is_file() else sorted(x for x in path.rglob("*") if x.is_file())
        for file in inside:
            found.setdefault(file.resolve(), path.name)
        if (seal := seal_of(path)).is_file():  # the script seals again what it saves again
            found.setdefault(seal.resolve(), _SEAL + path.name)
    return found


def _copied(folder: Path, files: dict[Path, str], within: bool, number: int) -> list[Kept]:
    """Copies of all the files, proven.

    Raises:
        UsageError: there is no room for all, or one cannot be copied.
    """
    copies = {file: folder / f"{number + at:06d}" for at, file in enumerate(files)}
    try:
        plain = [file for file, copy in copies.items() if not _cloned(file, copy)]
        need = sum(file.stat().st_size for file in plain)
        free = shutil.disk_usage(folder).free
        if plain and need > free - _RESERVE:
            raise _no_room(need, free, folder)
        for file in plain:
            _copy(file, copies[file])
        kept = []
        for file, name in files.items():
            state, found = _state(file), _hash(file)
            if _hash(copies[file]) != found or _state(file) != state:
                raise OSError(errno.EIO, f"the copy of {file.name} is not the same bytes")
            kept.append(Kept(str(file), name, within, copies[file].name, state, found))
    except (OSError, UsageError) as error:
        for copy in copies.values():
            copy.unlink(missing_ok=True)
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"what a replay may write over cannot be copied: {error.strerror or error}",
            where=str(folder),
            next_step=_NEXT,
        ) from None
    return kept


_NEXT: Final = (
    "name {run} in the command, a folder for what a replay saves; or --overwrite goes on all the "
    "same"
)


def _no_room(need: int, free: int, folder: Path) -> UsageError:
    return UsageError(
        f"no room to keep what a replay may write over: {need:,} bytes of checkpoints (and "
        f"{_RESERVE:,} in reserve), and {free:,} are free",
        where=str(folder.parent),
        next_step=f"make room; or {_NEXT}",
    )


def _cloned(file: Path, copy: Path) -> bool:
    """Whether the file system shares the blocks: such a copy takes no time and no room."""
    if sys.platform != "linux":
        return False
    try:
        with file.open("rb") as source, copy.open("wb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    shutil.copystat(file, copy)
    fsync_file(copy)
    return True


def _copy(file: Path, copy: Path) -> None:
    shutil.copyfile(file, copy)
    shutil.copystat(file, copy)
    fsync_file(copy)


def _was_changed(one: Kept) -> bool:
    """Whether the bytes are others now; a time that alone is another one is set back."""
    file = Path(one.file)
    try:
        if _state(file) == one.state:
            return False
        if file.stat().st_size != one.state[0] or _hash(file) != one.xxh3:
            return True
    except FileNotFoundError:
        return not one.within
    os.utime(file, ns=(one.state[1], one.state[1]))
    return False


def _restore(copy: Path, one: Kept) -> None:
    """Put the original's bytes in its place, all or none.

    Raises:
        OSError: that cannot be done, or the copy is not what it was.
    """
    file = Path(one.file)
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.put-back")
    try:
        if not _cloned(copy, beside):
            _copy(copy, beside)
        if _hash(beside) != one.xxh3:
            raise OSError(errno.EIO, "the copy is damaged")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    fsync_folder(file.parent)


def _state(file: Path) -> tuple[int, int, int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _hash(file: Path) -> str:
    state = xxhash.xxh3_128()
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            state.update(block)
    return state.hexdigest()
