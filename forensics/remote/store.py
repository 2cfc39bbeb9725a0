"""A file system of fsspec, read-only: listings, sizes and ranges of bytes, each asked for once."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from sdc_guard.errors import ArchiveUnreachable

from .blocks import Blocks
from .errors import StoreBusy, translated

_Answer = TypeVar("_Answer")
_PAUSES: Final = (0.5, 2.0, 5.0)  # seconds, before a store that is busy is asked again
_HTTP: Final = ("http", "https")
_TIMES: Final = ("LastModified", "mtime", "last_modified", "updated", "created")


@dataclass(frozen=True)
class Entry:
    """What a store says of a name.

    Attributes:
        is_folder: whether other names are in it.
        size: bytes.
        modified: seconds since the epoch; 0 if the store does not say.
    """

    is_folder: bool
    size: int
    modified: float


class Store:
    """What is known of a file system during one command: listings do not change in it.

    Args:
        fs: an instance of fsspec's AbstractFileSystem.
        protocol: "s3", "memory", "https".
        before: what its paths begin with: "", "/" or "https://".
        shown: what they are shown with: "s3://".
        query: what each question ends in, with its question mark, and which is never shown.
    """

    def __init__(self, fs: Any, protocol: str, before: str, shown: str, query: str = "") -> None:
        self.fs, self.protocol, self.before, self.shown = fs, protocol, before, shown
        self._query = query
        self.requests = 0
        self.fetched = 0  # bytes of content
        self.down: ArchiveUnreachable | None = None
        self._folders: dict[str, Mapping[str, Entry] | None] = {}
        self._entries: dict[str, Entry | None] = {}
        self._blocks = Blocks()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """On another machine nothing is known yet."""
        return Store, (self.fs, self.protocol, self.before, self.shown, self._query)

    def entry(self, name: str) -> Entry | None:
        """What a name is; None if there is nothing.

        Raises:
            OSError: it may not be looked at.
            SdcGuardError: the store cannot be reached, or takes no credentials.
        """
        folder, _, last = name.rpartition("/")
        if folder in self._folders or self._is_below_listed(folder):
            found = (self.names(folder) or {}).get(last)
            if found is None or found.is_folder or found.size >= 0:
                return found
        if name not in self._entries:
            self._entries[name] = self._asked(name)
        return self._entries[name]

    def _is_below_listed(self, folder: str) -> bool:
        """Whether to list a folder for the sake of a name: it is below what was looked at."""
        seen = self._entries.get(folder)
        if seen is not None and seen.is_folder:
            return True
        above, _, last = folder.rpartition("/")
        known = self._folders.get(above)
        return known is not None and last in known and known[last].is_folder

    def _asked(self, name: str) -> Entry | None:
        try:
            told = self._call(lambda: self.fs.info(self._full(name)), name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.protocol in _HTTP and str(told.get("mimetype", "")).startswith("text/html"):
            return Entry(True, 0, 0.0)  # a listing
        return _entry(told)

    def names(self, folder: str) -> Mapping[str, Entry] | None:
        """What is in a folder, by name; None if it is none.

        Raises: as `entry`.
        """
        if folder not in self._folders:
            self._folders[folder] = self._listed(folder)
        return self._folders[folder]

    def _listed(self, folder: str) -> Mapping[str, Entry] | None:
        full = self.before + folder
        if self.protocol in _HTTP:
            full = full.rstrip("/") + "/"
        try:
            told = self._call(lambda: self.fs.ls(full + self._query, detail=True), folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(told) == 1 and told[0]["type"] != "directory" and _same(told[0]["name"], full):
            return None  # a file lists itself
        return {_last(one["name"]): _entry(one) for one in told if not _same(one["name"], full)}

    def read(self, name: str, size: int, first: int, end: int) -> bytes:
        """The bytes [first, end) of a file of `size` bytes.

        Raises: as `entry`, and OSError if they are not all there.
        """

        def fetch(start: int, stop: int) -> bytes:
            content: bytes = self._call(
                lambda: self.fs.cat_file(self._full(name), start=start, end=stop), name
            )
            with self._lock:
                self.fetched += len(content)
            if len(content) != stop - start:
                what = "no ranges of a file" if len(content) > stop - start else "less than it said"
                raise OSError(errno.EIO, f"the store gives {what}", self.text(name))
            return content

        return self._blocks.read(name, size, first, end, fetch)

    def copy(self, name: str, target: str) -> None:
        """Copy a file into the local one `target`.

        Raises: as `entry`.
        """
        self._call(lambda: self.fs.get_file(self._full(name), target), name)

    def text(self, name: str) -> str:
        """The URL of a name, without credentials and query."""
        return self.shown + name

    def _full(self, name: str) -> str:
        return self.before + name + self._query

    def _call(self, ask: Callable[[], _Answer], name: str) -> _Answer:
        for pause in (*_PAUSES, None):
            if self.down is not None:
                raise self.down
            with self._lock:
                self.requests += 1
            try:
                return ask()
            except Exception as error:  # noqa: BLE001 - because each store's library raises errors of its own
                told = translated(error, self.text(name))
            if pause is None or not isinstance(told, StoreBusy):
                break
            time.sleep(pause)
        if isinstance(told, ArchiveUnreachable):
            self.down = told  # each further question would wait as long again
        raise told


def _entry(told: Mapping[str, Any]) -> Entry:
    folder = told["type"] == "directory"
    size = told.get("size")
    return Entry(folder, (0 if folder else -1) if size is None else int(size), _modified(told))


def _modified(told: Mapping[str, Any]) -> float:
    for key in _TIMES:
        value = told.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _same(one: str, other: str) -> bool:
    return one.strip("/") == other.strip("/")
