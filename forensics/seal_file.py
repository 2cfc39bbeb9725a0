"""The seal of a checkpoint that the search knows."""

from __future__ import annotations

from pathlib import Path

from sdc_guard.archive.sealing.seal_file import Seal, own_checksum, publish_seal, seal_at, seal_of

from .checkpoint import Checkpoint

__all__ = ["Seal", "own_checksum", "put_seal", "read_seal", "seal_path"]


def seal_path(checkpoint: Checkpoint) -> Path:
    """Where the seal of a checkpoint lies."""
    return seal_of(checkpoint.path)


def put_seal(checkpoint: Checkpoint, seal: Seal) -> None:
    """Write a seal beside its checkpoint; without digests if it would be too large to be read.

    Raises:
        UsageError: it cannot be written.
    """
    publish_seal(checkpoint.path, seal)


def read_seal(checkpoint: Checkpoint) -> Seal | None:
    """The seal of a checkpoint; None if there is none.

    Raises:
        CheckpointUnreadable: it is damaged, no file, too large, or of a newer version.
    """
    return seal_at(checkpoint.path)
