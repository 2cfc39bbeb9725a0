"""A checkpoint's files read from a cache, which is filled with what it has not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ..manifest import SHARDED, FileEntry, Manifest
from ..recovery.copying import Stop, stopped_at_end
from ..sharded.place import Place
from .cache import Cache
from .entries import Held

_THREADS: Final = min(8, os.cpu_count() or 1)


def files_of(manifest: Manifest) -> Sequence[FileEntry]:
    """The files of a checkpoint of the archive, the manifest aside."""
    if manifest.format == SHARDED:
        return manifest.files
    return (FileEntry(manifest.file, manifest.bytes, manifest.xxh3),)


class CachedPlace(Place):
    """A checkpoint's files, each held in the cache as long as this is not closed.

    The bytes are not compared here: who loads them does it, and calls `weed` where they differ.
    """

    def __init__(self, folder: Path, manifest: Manifest, cache: Cache) -> None:
        super().__init__(folder)
        self._cache, self._lock = cache, threading.Lock()
        self._entries = {file.name: file for file in files_of(manifest)}
        self._held: dict[str, Held] = {}

    def file(self, name: str) -> Path:
        """Where to read it: in the cache, or in the checkpoint where it goes past the cache.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: the checkpoint's own is damaged or missing.
        """
        return self._found(name, None)

    def _found(self, name: str, stop: Stop | None) -> Path:
        with self._lock:
            if name in self._held:
                return self._held[name].path
        entry, source = self._entries.get(name), super().file(name)
        held = None if entry is None else self._cache.fetch(entry, source, proven=False, stop=stop)
        if held is None:
            return source
        with self._lock:
            if name in self._held:  # another thread was faster
                held.close()
                return self._held[name].path
            self._held[name] = held
        return held.path

    def ready(self, names: Iterable[str]) -> None:
        """Read these into the cache, several at once; Ctrl-C waits for none of them.

        Raises: as `file`.
        """
        with ThreadPoolExecutor(_THREADS) as pool, stopped_at_end() as stop:
            list(pool.map(lambda name: self._found(name, stop), names))

    def weed(self) -> bool:
        """Delete what is held and has other bytes; whether there was any."""
        with self._lock:
            bad = [name for name, held in self._held.items() if self._cache.weed(held, name)]
            for name in bad:
                del self._held[name]
        return bool(bad)

    def __enter__(self) -> CachedPlace:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for held in self._held.values():
                held.close()
            self._held.clear()
