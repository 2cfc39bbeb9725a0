"""A file behind a URL, as Python's files are: read-only, by ranges."""

from __future__ import annotations

import io

from .store import Store

_MOST = 1 << 23  # bytes of a read, which is in memory twice meanwhile


class RemoteFile(io.RawIOBase):
    """A file of a store. Only what is read is fetched.

    Args:
        store: that it is in.
        name: in the store.
        size: bytes.
    """

    def __init__(self, store: Store, name: str, size: int) -> None:
        super().__init__()
        self._store, self._name, self._size, self._at = store, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise OSError(22, "a place before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # a Buffer, by typeshed
        target = memoryview(buffer).cast("B")[:_MOST]  # a buffered reader asks for the rest
        end = self._at + len(target)
        content = self._store.read(self._name, self._size, self._at, end)
        target[: len(content)] = content
        self._at += len(content)
        return len(content)
