"""A checkpoint whose bytes went wrong on their way to the disk or on it."""

from __future__ import annotations

from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import SHARDED, Manifest
from sdc_guard.archive.torch_file import read_torch_file

from .checkpoint import Checkpoint
from .locate import LocatedTensor
from .result import STORED_BYTES, Result


def storage_result(corrupt: Checkpoint, last_clean: int, replayed: Result) -> Result:
    """The answer when the training replays bit for bit and only the stored bytes are wrong.

    The file carries checksums of what was written. Where one fails, the bytes changed on the
    disk or on their way to it: storage. Where all hold, wrong bytes were written: they changed in
    memory after the step, or before the checksum was taken; which, nobody can tell any more.

    Args:
        corrupt: the checkpoint.
        last_clean: step of the clean one before it.
        replayed: the result of replaying the steps between the two.
    """
    manifest = Manifest.read(corrupt.path)
    check = check_bytes(corrupt.path, manifest)
    one_file = manifest.format != SHARDED and not check.unread
    stored = read_torch_file(corrupt.path / manifest.file).tensors if one_file else {}
    tensors = tuple(
        LocatedTensor(
            item.kind or "stored",
            item.layer or item.name,
            item.change,
            str(stored[item.name].dtype).removeprefix("torch.")
            if item.name in stored
            else manifest.tensors[item.name].dtype or "",
        )
        for item in check.mismatches
    )
    return Result(
        command="verify",
        last_clean=last_clean,
        first_corrupt=corrupt.step,
        exact=replayed.exact,
        proven=True,
        tensors=tensors,
        kind=STORED_BYTES,
        verdict="storage" if check.crc or check.rewritten or check.size else "undetermined",
        evidence=(*replayed.evidence, *check.reasons()),
        watched=replayed.watched,
    )
