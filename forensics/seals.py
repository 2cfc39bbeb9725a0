"""Seals as the search uses them: a checkpoint against its own, and what a guard said in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sdc_guard.archive.sealing.files import Compared, compared_with, hashed_files
from sdc_guard.archive.sealing.seal_file import (
    Guarded,
    Seal,
    publish_seal,
    seal_at,
    seal_of,
)
from sdc_guard.errors import CheckpointUnreadable

from .checkpoint import Checkpoint
from .content import Integrity
from .seal_tensors import sealed_tensors


def seal_path(checkpoint: Checkpoint) -> Path:
    """Where the seal of a checkpoint lies."""
    return seal_of(checkpoint.path)


def write_seal(
    checkpoint: Checkpoint, tensors: tuple[str, ...], guarded: Guarded | None = None
) -> Seal:
    """Seal a checkpoint as it is now.

    Args:
        checkpoint: to be sealed.
        tensors: names of those in it.
        guarded: what a guard knew of these very files.

    Raises:
        CheckpointUnreadable: a file of it cannot be read.
        UsageError: the seal cannot be written.
    """
    files = hashed_files(checkpoint.path)
    digests = sealed_tensors(checkpoint)
    seal = Seal(checkpoint.step, checkpoint.format, files, tensors, digests, guarded)
    publish_seal(checkpoint.path, seal)
    return seal


def compare_with_seal(checkpoint: Checkpoint) -> Compared | None:
    """Every byte of a checkpoint against its seal; None if it has none.

    Raises:
        CheckpointUnreadable: a file cannot be read, or the seal is damaged or of a newer version.
    """
    seal = seal_at(checkpoint.path)
    return None if seal is None else compared_with(seal, checkpoint.path)


def with_seal(found: Integrity, compared: Compared | None) -> Integrity:
    """What reading a checkpoint showed, with what its seal proves; as it was without one."""
    if compared is None:
        return found
    if damaged := {**compared.changed, **found.damaged}:
        return replace(found, damaged=damaged)
    return Integrity({}, (*found.intact, *found.unchecked), (), found.bytes)


def as_sealed(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, of the step that it was sealed with, and what the guard said of it then.

    What is in it may have changed since.
    """
    try:
        seal = seal_at(checkpoint.path)
    except CheckpointUnreadable:
        return checkpoint
    if seal is None:
        return checkpoint
    if seal.guarded is not None:
        checkpoint = _with_judgement(checkpoint, seal.guarded)
    if seal.step == checkpoint.step:
        return checkpoint
    note = f"now it says step {checkpoint.step}, and {seal.step} when it was sealed"
    named = None if checkpoint.named_step == seal.step else checkpoint.named_step
    return replace(checkpoint, step=seal.step, named_step=named, notes=(*checkpoint.notes, note))


def _with_judgement(checkpoint: Checkpoint, guarded: Guarded) -> Checkpoint:
    status = checkpoint.status
    if status == "untested" and not (guarded.status == "clean" and not checkpoint.readable):
        status = guarded.status
    reasons = (*checkpoint.reasons, *guarded.reasons)
    return replace(checkpoint, status=status, reasons=reasons, attempt=guarded.attempt)
