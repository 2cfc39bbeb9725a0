"""A path behind a URL, with those methods of pathlib.Path by which archives are read."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import BinaryIO, cast

from .file import RemoteFile
from .store import Entry, Store


@dataclass(frozen=True)
class Status:
    """What `stat` tells; times are those at which the store was given the file."""

    st_size: int
    st_mtime: float

    @property
    def st_mtime_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return int(self.st_mtime * 1e9)


class RemotePath:
    """A file or folder in a store.

    It has no `__fspath__`: what opens paths by itself, as the functions of `os` do, fails at once
    instead of looking at this machine's own files.

    Args:
        store: where it is.
        pure: its path in there, without what all of the store's paths begin with.
    """

    __slots__ = ("_pure", "store")

    def __init__(self, store: Store, pure: PurePosixPath) -> None:
        self.store, self._pure = store, pure

    # as text, and by its parts

    def __str__(self) -> str:
        return self.store.text(self._name)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: RemotePath) -> bool:
        return self._pure < other._pure

    def __truediv__(self, other: str | PurePosixPath) -> RemotePath:
        return RemotePath(self.store, self._pure / str(other).lstrip("/"))

    @property
    def _name(self) -> str:
        return "" if self._pure == PurePosixPath() else str(self._pure)

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return self._pure.parts

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.store, self._pure.parent)

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        return tuple(RemotePath(self.store, one) for one in self._pure.parents)

    def as_posix(self) -> str:
        return str(self)

    def absolute(self) -> RemotePath:
        return self

    def resolve(self) -> RemotePath:
        return self

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(self.store, self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> RemotePath:
        return RemotePath(self.store, self._pure.with_suffix(suffix))

    def is_relative_to(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._pure.is_relative_to(other._pure)

    def relative_to(self, other: RemotePath) -> PurePosixPath:
        """The path from another one to this: relative ones are in no store."""
        return self._pure.relative_to(other._pure)

    def samefile(self, other: object) -> bool:
        return self == other

    # in the store; all raise OSError and, where it does not answer, ArchiveUnreachable

    def exists(self) -> bool:
        return self._entry() is not None

    def is_file(self) -> bool:
        entry = self._entry()
        return entry is not None and not entry.is_folder

    def is_dir(self) -> bool:
        entry = self._entry()
        return entry is not None and entry.is_folder

    def stat(self) -> Status:
        entry = self._there()
        return Status(max(0, entry.size), entry.modified)

    def iterdir(self) -> Iterator[RemotePath]:
        names = self.store.names(self._name)
        if names is None:
            raise NotADirectoryError(errno.ENOTDIR, "no such folder", str(self))
        return iter([self / name for name in names])

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Those below it whose parts fit those of a pattern, each as in fnmatch."""
        first, _, rest = pattern.partition("/")
        for one in self.iterdir() if self.is_dir() else ():
            if fnmatchcase(one.name, first):
                if not rest:
                    yield one
                elif one.is_dir():
                    yield from one.glob(rest)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Those anywhere below it whose name fits."""
        for one in self.iterdir() if self.is_dir() else ():
            if fnmatchcase(one.name, pattern):
                yield one
            if one.is_dir():
                yield from one.rglob(pattern)

    def open(self, mode: str = "r", buffering: int = -1) -> BinaryIO:
        """The file, to be read as bytes.

        Raises:
            OSError: it is none, or was to be written.
        """
        if mode != "rb":
            raise OSError(errno.EROFS, "what is behind a URL is only read", str(self))
        entry = self._there()
        if entry.is_folder:
            raise IsADirectoryError(errno.EISDIR, "a folder", str(self))
        raw = RemoteFile(self.store, self._name, max(0, entry.size))
        return cast(BinaryIO, raw if buffering == 0 else io.BufferedReader(raw))

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)

    def copy_to(self, target: str) -> None:
        """Copy the file to a local one."""
        self.store.copy(self._name, target)

    def _entry(self) -> Entry | None:
        return self.store.entry(self._name)

    def _there(self) -> Entry:
        entry = self._entry()
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(self))
        return entry
