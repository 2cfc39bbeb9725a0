"""Sealing a checkpoint that another program wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdc_guard.archive.sealing.seal_file import Guarded
from sdc_guard.errors import CheckpointUnreadable

from .checkpoint import Checkpoint
from .oracles.integrity import read_bytes
from .seal_file import read_seal, seal_path
from .seal_tensors import nan_in_words
from .seals import compare_with_seal, write_seal


@dataclass(frozen=True)
class Sealed:
    """What was done with one checkpoint.

    Attributes:
        step: of the checkpoint.
        path: its own.
        done: whether it has a seal now.
        what: in words.
    """

    step: int
    path: str
    done: bool
    what: str

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {"step": self.step, "path": self.path, "sealed": self.done, "what": self.what}


def sealed(one: Checkpoint, again: bool = False) -> Sealed:
    """Seal a checkpoint that is sound as far as it can be seen.

    Args:
        one: the checkpoint.
        again: take the place of a seal that is there.

    Raises:
        UsageError: the seal cannot be written.
    """

    def told(done: bool, what: str) -> Sealed:
        return Sealed(one.step, str(one.path), done, what)

    place = seal_path(one)
    guarded = _still_proven(one) if again else None
    if not again:
        try:
            before = read_seal(one)
        except CheckpointUnreadable as error:
            return told(False, f"not sealed: {error.what}; seal it again with --again")
        if before is not None:
            return told(True, f"sealed already: {place.name}")
    elif place.is_dir():
        return told(False, f"not sealed: {place.name} is a folder")
    else:
        place.unlink(missing_ok=True)  # what it says must not count against what is there now
    read = read_bytes(one)
    if read.integrity is None or read.judgement.verdict == "corrupt":
        return told(False, f"not sealed: {read.reason}")
    try:
        names = (*read.integrity.intact, *read.integrity.unchecked)
        seal = write_seal(one, names, guarded)
    except CheckpointUnreadable as error:
        return told(False, f"not sealed: {error.what}")
    count = len(seal.files)
    files = f"{count} {'file' if count == 1 else 'files'}"
    return told(True, f"sealed {files} in {place.name}{nan_in_words(seal.digests)}")


def _still_proven(one: Checkpoint) -> Guarded | None:
    """What a guard said in the seal that is there, if the files are still those."""
    try:
        compared = compare_with_seal(one)
    except CheckpointUnreadable:
        return None
    return compared.seal.guarded if compared is not None and compared.holds else None
