"""Exact: a checkpoint's bytes against the checksums that it was written with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sdc_guard.archive.dcp.dcp_metadata import FILE as DCP_METADATA
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Integrity
from ..readers.guard_archive import FORMAT as GUARD
from ..readers.known import reader_of
from ..seal_file import seal_path
from ..seal_tensors import with_named_tensors
from ..seals import compare_with_seal, saved_anew, with_seal
from .judgement import Judgement

_MOST_NAMED: Final = 3  # tensors in a line
_NO_CHECKSUMS: Final = ("safetensors", "safetensors-sharded", "torch-legacy")
_WITH_MANIFEST: Final = (GUARD,)
# says which bytes are which: not that they are right, which is what is judged
_NAMES: Final = frozenset({DCP_METADATA})


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

    Bytes that differ from what was written are corrupt, and so is a file that a manifest or a seal
    knows and that is another one or cut off, whether or not anything in it can be read. Without
    these a file that is cut off, or not there, is untestable. Bytes without a checksum are
    untestable, and the reason says so; that DCP's names have none is told and does not count here.
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
    """Read every byte of a checkpoint; no foreseeable damage raises.

    A seal comes first, and a guard's manifest: they say what bytes must be there, whether or not
    the file can still be made sense of.
    """
    try:
        compared, no_seal = compare_with_seal(checkpoint), ""
    except CheckpointUnreadable as error:
        compared, no_seal = None, error.what
    if compared is not None and compared.holds and checkpoint.readable:
        seal = compared.seal
        found = Integrity({}, seal.tensors, (), compared.bytes)
        return Bytes(Judgement("clean", _sealed(len(seal.files))), found)
    changed = None if compared is None or not compared.changed else compared
    sound = checkpoint.readable
    try:
        found = _read(checkpoint)
    except CheckpointUnreadable as error:
        sound = False
        if changed is None:
            return Bytes(Judgement("untestable", error.what))
        found = Integrity({}, (), (), changed.bytes)
        damaged = {name: f"{why}; {error.what}" for name, why in changed.changed.items()}
        changed = replace(changed, changed=damaged)
    sound = sound and not found.damaged  # by itself
    found = with_seal(found, changed or compared)
    if changed is not None:
        anew = saved_anew(changed.seal) if sound else ""
        found = with_named_tensors(checkpoint, found, changed.seal.digests, anew)
    if no_seal:  # it proves nothing, and that is told
        place = seal_path(checkpoint).name
        unchecked = (*found.unchecked, place)
        found = replace(found, unchecked=unchecked, why={**found.why, place: no_seal})
    return Bytes(_judged(found, checkpoint.format), found)


def _read(checkpoint: Checkpoint) -> Integrity:
    """What the reader of its format shows.

    Raises:
        CheckpointUnreadable: nothing of it can be read, or it is not whole. Of a file that a
            manifest is about that is no reason: it is compared with that.
    """
    said = "" if checkpoint.readable else "; ".join(checkpoint.reasons)
    if said and checkpoint.format not in _WITH_MANIFEST:
        raise CheckpointUnreadable(said)
    try:
        found = reader_of(checkpoint.format).check(checkpoint)
    except CheckpointUnreadable as error:
        raise CheckpointUnreadable(said or error.what) from None
    except OSError as error:  # a file that may not be read, or is gone by now
        what = f"cannot be read: {error.strerror or error}"
        raise CheckpointUnreadable(said or what) from None
    if checkpoint.format in _WITH_MANIFEST:
        return found
    return replace(found, damaged=_beyond(checkpoint, found.damaged))


def _sealed(count: int) -> str:
    return (
        "its only file is as it was sealed" if count == 1 else f"all {count:,} files are as sealed"
    )


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
    open = set(found.unchecked) - _NAMES
    if open:
        return Judgement("untestable", missing_checksums(found, format))
    if not found.intact:
        none = "none of its tensors can be evaluated" if found.foreign else "no tensors in it"
        return Judgement("untestable", none)
    count = len(found.intact)
    tensors = "its only tensor fits its checksum" if count == 1 else f"all {count:,} tensors fit"
    said = tensors if count == 1 else f"{tensors} their checksums"
    return Judgement("clean", "; ".join((said, *_reasons(found))))


def damage_in_words(found: Integrity) -> str:
    """The first damaged tensors, or files, and how many there are."""
    named = [f"{name}: {why}" for name, why in list(found.damaged.items())[:_MOST_NAMED]]
    more = len(found.damaged) - len(named)
    return "; ".join(named) + (f"; and {more:,} more" if more else "")


def missing_checksums(found: Integrity, format: str) -> str:
    """What of a sound-looking checkpoint cannot be checked."""
    plain, told = len(set(found.unchecked) - found.why.keys()), _reasons(found)
    if plain and not found.intact:
        return "; ".join((no_checksum(format), *told))
    if not plain:
        return "; ".join(told)
    whole = plain + len(found.intact)
    text = f"{plain:,} of {whole:,} tensors have no checksum: only their structure can be checked"
    return "; ".join((text, *told))


def _reasons(found: Integrity) -> list[str]:
    """Why some things could not be checked: the first, and how many more there are."""
    told = [f"{name}: {found.why[name]}" for name in found.unchecked if name in found.why]
    more = [f"and {len(told) - _MOST_NAMED:,} more"] if len(told) > _MOST_NAMED else []
    return told[:_MOST_NAMED] + more


def no_checksum(format: str) -> str:
    """What cannot be checked of a format that keeps no checksum."""
    return f"no checksum in {format}: only its structure can be checked"
