"""A sharded checkpoint's bytes against its manifest, all of them."""

from __future__ import annotations

from pathlib import Path

from ...errors import CheckpointMismatch
from ..compare import ByteCheck
from ..manifest import Manifest
from .opened import OpenedFolder


def check_sharded(folder: Path, manifest: Manifest) -> ByteCheck:
    """Read every byte, and compare files with their checksums, and tensors with their digests.

    Raises:
        CheckpointUnreadable: a file that says where the tensors are is missing or cut off.
    """
    try:
        opened = OpenedFolder(folder, manifest)
    except CheckpointMismatch as error:
        return ByteCheck(rewritten=True, unread=error.what)
    missing = tuple(name for name in manifest.tensors if name not in opened.written)
    crc, mismatches = {}, []
    for name, told in opened.differences():
        found = opened.mismatch(name)
        if found is None:
            crc[name] = told
        else:
            mismatches.append(found)
    return ByteCheck(tuple(mismatches), missing, crc)
