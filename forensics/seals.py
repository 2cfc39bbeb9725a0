"""Seals as the search uses them: a checkpoint against its own, and what a guard said in it."""

from __future__ import annotations

import time
from dataclasses import replace

from sdc_guard.archive.sealing.files import Compared, compared_with, hashed_files, is_of
from sdc_guard.archive.sealing.seal_file import Guarded, Seal
from sdc_guard.errors import CheckpointUnreadable

from .checkpoint import Checkpoint
from .content import Integrity
from .readers.step_of import FROM_NAME
from .seal_file import put_seal, read_seal
from .seal_tensors import sealed_tensors


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
    seal = Seal(
        checkpoint.step, checkpoint.format, files, tensors, digests,
        checkpoint.path.name, float(int(time.time())), True, guarded,
    )  # fmt: skip
    put_seal(checkpoint, seal)
    return seal


def compare_with_seal(checkpoint: Checkpoint) -> Compared | None:
    """Every byte of a checkpoint against its seal; None if it has none.

    Raises:
        CheckpointUnreadable: a file cannot be read, or the seal is no testimony: damaged, of a
            newer version, or of another checkpoint.
    """
    seal = read_seal(checkpoint)
    return None if seal is None else compared_with(seal, checkpoint.path, checkpoint.step)


def with_seal(found: Integrity, compared: Compared | None) -> Integrity:
    """What reading a checkpoint showed, with what its seal proves; as it was without one."""
    if compared is None:
        return found
    if damaged := {**compared.changed, **found.damaged}:
        return replace(found, damaged=damaged)
    sealed = {
        *compared.seal.tensors,
        *compared.seal.files,
    }  # one that was added has others
    proven = tuple(name for name in found.unchecked if name in sealed)
    return replace(
        found,
        intact=(*found.intact, *proven),
        unchecked=tuple(name for name in found.unchecked if name not in sealed),
        why={name: why for name, why in found.why.items() if name not in sealed},
    )


def saved_anew(seal: Seal) -> str:
    """What may have become of a file that is another one, and sound by itself."""
    when = f" (seal of {seal.day})" if seal.day else ""
    return f"or it was saved anew since it was sealed{when}: then seal it again with --again"


def as_sealed(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, of the step that it was sealed with, and what the guard said of it then.

    What is in it may have changed since.

    Where the seal fits its own checksum and is of a checkpoint of that name, or, of version 1,
    where the name says that step, too.
    """
    try:
        seal = read_seal(checkpoint)
    except CheckpointUnreadable:
        return checkpoint
    if seal is None:
        return checkpoint
    guarded = seal.guarded if is_of(checkpoint.path, seal) else None
    if guarded is not None:
        checkpoint = _with_judgement(checkpoint, guarded)
    if seal.step == checkpoint.step:
        return checkpoint if guarded is None else _step_known(checkpoint)
    if not is_of(checkpoint.path, seal) or not (seal.checked or checkpoint.named_step == seal.step):
        note = f"its seal says step {seal.step}: of another file, or changed"
        return replace(checkpoint, notes=(*checkpoint.notes, note))
    note = f"now it says step {checkpoint.step}, and {seal.step} when it was sealed"
    named = None if checkpoint.named_step == seal.step else checkpoint.named_step
    return replace(checkpoint, step=seal.step, named_step=named, notes=(*checkpoint.notes, note))


def _step_known(checkpoint: Checkpoint) -> Checkpoint:
    """Without the note that its step was taken from its name: the guard that sealed it has it."""
    notes = tuple(note for note in checkpoint.notes if note != FROM_NAME)
    return replace(checkpoint, notes=notes)


def _with_judgement(checkpoint: Checkpoint, guarded: Guarded) -> Checkpoint:
    status = checkpoint.status
    if status == "untested" and not (guarded.status == "clean" and not checkpoint.readable):
        status = guarded.status
    reasons = (*checkpoint.reasons, *guarded.reasons)
    return replace(checkpoint, status=status, reasons=reasons, attempt=guarded.attempt)
