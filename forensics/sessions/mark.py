"""How a checkpoint is known again: by sizes and times, and if those differ by its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sdc_guard.archive.regular_file import open_regular

from ..locations import is_local

FOLDER: Final = ".sdc-bisect"  # ours, where it lies in what is marked
MANIFEST: Final = "manifest.json"
_CHUNK: Final = 1 << 20
_STAT_DIGEST: Final = 8  # bytes


@dataclass(frozen=True)
class Mark:
    """What a checkpoint was like when it was judged.

    Attributes:
        files: their number.
        bytes: their sizes together.
        stat: digest of their names, sizes and times of modification.
        content: algorithm and digest of their bytes, or of the manifest where one says what the
            bytes must be; None if they could not be read.
    """

    files: int
    bytes: int
    stat: str
    content: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """In the journal."""
        return {"files": self.files, "bytes": self.bytes, "stat": self.stat,
                "content": self.content}  # fmt: skip

    @classmethod
    def of_dict(cls, stored: Any) -> Mark | None:
        """From the journal; None if there is none that can be read."""
        if not isinstance(stored, dict):
            return None
        try:
            content = stored.get("content")
            return cls(int(stored["files"]), int(stored["bytes"]), str(stored["stat"]),
                       None if content is None else str(content))  # fmt: skip
        except (KeyError, TypeError, ValueError):
            return None


Change = Literal["same", "touched", "changed"]


def glance(path: Path) -> Mark:
    """The mark without its content: nothing is read."""
    digest = hashlib.blake2b(digest_size=_STAT_DIGEST)
    files = total = 0
    for name, file in _files(path):
        try:
            found = file.stat()
        except OSError:  # gone, or a link to nowhere
            digest.update(f"{name}\0absent\0".encode(errors="surrogateescape"))
            continue
        files, total = files + 1, total + found.st_size
        line = f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0"
        digest.update(line.encode(errors="surrogateescape"))
    return Mark(files, total, digest.hexdigest())


def content_of(path: Path, like: str | None = None) -> str | None:
    """Digest of the bytes, or of the manifest; None if they cannot be read, or are behind a URL.

    Args:
        path: file or folder.
        like: a digest to compare with, whose algorithm is used.
    """
    if not is_local(path):  # a whole download; a store's own time of the upload is enough
        return None
    manifest = path / MANIFEST
    only = [(MANIFEST, manifest)] if manifest.is_file() else None
    wanted = None if like is None else like.removeprefix("manifest ").partition(":")[0]
    try:
        name, digest = _hasher(wanted)
        for relative, file in only or _files(path):
            if file.exists() and not file.is_file():  # a pipe, a socket: it has no bytes
                continue
            digest.update(f"{relative}\0".encode(errors="surrogateescape"))
            with open_regular(file) as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
    except (OSError, ImportError):
        return None
    return f"{'manifest ' if only else ''}{name}:{digest.hexdigest()}"


def compare(mark: Mark, path: Path) -> tuple[Change, Mark]:
    """Whether a checkpoint is what it was, and its mark now.

    Sizes and times that are the same are believed. If they differ the bytes decide; where a
    manifest stands for them it says what they must be, not what they are: then it has changed.
    """
    now = glance(path)
    if now.stat == mark.stat:
        return "same", mark
    content = content_of(path, mark.content)
    now = Mark(now.files, now.bytes, now.stat, content)
    by_bytes = content is not None and not content.startswith("manifest ")
    return ("touched" if by_bytes and content == mark.content else "changed"), now


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a checkpoint with its name in it, in order."""
    if not path.is_dir():
        yield path.name, path
        return
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        if FOLDER not in relative.parts and not file.is_dir():
            yield relative.as_posix(), file


def _hasher(wanted: str | None) -> tuple[str, Any]:
    """xxh3 at memory speed where it is installed, else what Python has."""
    if wanted in (None, "xxh3_128"):
        try:
            import xxhash

            return "xxh3_128", xxhash.xxh3_128()
        except ImportError:
            if wanted is not None:
                raise
    return "blake2b", hashlib.blake2b(digest_size=16)
