"""The formats that are read, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from . import deepspeed, guard_archive, lightning, megatron, torch_legacy, torch_zip
from .reader import Reader

READERS: Final[tuple[Reader, ...]] = (
    guard_archive.READER,
    deepspeed.READER,
    megatron.READER,
    lightning.READER,
    torch_zip.READER,
    torch_legacy.READER,
)


def reader_of(format: str) -> Reader:
    """The reader of a format, by `Checkpoint.format`.

    Raises:
        KeyError: there is none of that name.
    """
    return {reader.format: reader for reader in READERS}[format]
