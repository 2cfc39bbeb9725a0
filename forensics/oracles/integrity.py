"""Exact: a checkpoint's bytes against the checksums that it was written with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Integrity
from ..readers.known import reader_of
from ..seals import seal_path, with_seal
from .judgement import Judgement

_MOST_NAMED: Final = 3  # tensors in a line
_NO_CHECKSUMS: Final = ("safetensors", "safetensors-sharded", "torch-legacy")


@dataclass(frozen=True)
class Bytes:
    """What reading every byte of a checkpoint showed.

    Attributes:
        judgement: clean only if each tensor fits a checksum: that it could be loaded shows
            nothing.
        integrity: by tensor; None where nothing could be read.
    """

    judgement: Judgement
    integrity: Integrity | None = None

    @property
    def reason(self) -> str:
        """The judgement's."""
        return self.judgement.reason


class IntegrityOracle:
    """Judges by the checksums of the format, and by the manifest where there is one.

    A file that is cut off, or not there, is untestable; bytes that differ from what was written
    are corrupt; bytes without a checksum are untestable, and the reason says so.
    """

    name = "integrity"
    proves = True
    persists = False
    concurrent = True
    cost: float | None = None

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Read every byte of one checkpoint, unless nothing is there to compare them with."""
        without = checkpoint.format in _NO_CHECKSUMS and not seal_path(checkpoint).exists()
        if checkpoint.readable and without:
            return Judgement("untestable", no_checksum(checkpoint.format))
        return read_bytes(checkpoint).judgement


def read_bytes(checkpoint: Checkpoint) -> Bytes:
    """Read every byte of a checkpoint; no foreseeable damage raises."""
    if not checkpoint.readable:
        return Bytes(Judgement("untestable", "; ".join(checkpoint.reasons)))
    try:
        found = reader_of(checkpoint.format).check(checkpoint)
    except CheckpointUnreadable as error:
        return Bytes(Judgement("untestable", error.what))
    except OSError as error:  # a file that may not be read, or is gone by now
        return Bytes(Judgement("untestable", f"cannot be read: {error.strerror or error}"))
    found = with_seal(checkpoint, replace(found, damaged=_beyond(checkpoint, found.damaged)))
    return Bytes(_judged(found, checkpoint.format), found)


def _beyond(checkpoint: Checkpoint, damaged: Mapping[str, str]) -> dict[str, str]:
    """What reading showed beyond what was seen without it: a file that a save never wrote.

    A checkpoint that lacks a part and can be judged all the same is incomplete and not corrupt.
    """
    return {
        name: why
        for name, why in damaged.items()
        if not any(one.startswith(f"{name}: ") or why in one for one in checkpoint.reasons)
    }


def _judged(found: Integrity, format: str) -> Judgement:
    if found.damaged:
        return Judgement("corrupt", damage_in_words(found), stored_bytes=True)
    if found.unchecked:
        return Judgement("untestable", missing_checksums(found, format))
    if not found.intact:
        return Judgement("untestable", "no tensors in it")
    count = len(found.intact)
    tensors = "its only tensor fits its checksum" if count == 1 else f"all {count:,} tensors fit"
    return Judgement("clean", tensors if count == 1 else f"{tensors} their checksums")


def damage_in_words(found: Integrity) -> str:
    """The first damaged tensors, or files, and how many there are."""
    named = [f"{name}: {why}" for name, why in list(found.damaged.items())[:_MOST_NAMED]]
    more = len(found.damaged) - len(named)
    return "; ".join(named) + (f"; and {more:,} more" if more else "")


def missing_checksums(found: Integrity, format: str) -> str:
    """What of a sound-looking checkpoint cannot be checked."""
    if not found.intact:
        return no_checksum(format)
    count, whole = len(found.unchecked), len(found.unchecked) + len(found.intact)
    return f"{count:,} of {whole:,} tensors have no checksum: only their structure can be checked"


def no_checksum(format: str) -> str:
    """What cannot be checked of a format that keeps no checksum."""
    return f"no checksum in {format}: only its structure can be checked"
