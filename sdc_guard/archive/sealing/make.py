"""Sealing a checkpoint's files with what a guard knows of the step that they should hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from ...digest import Digest, digest_tensor
from ...errors import CheckpointUnreadable
from ..manifest import Status
from ..nonfinite import nonfinite
from .contents import Contents, contents_of
from .files import files_of, hashed_files
from .judged import Judged, Key, Left, compared, judgement
from .seal_file import Guarded, Seal, SealedTensor, publish_seal

Whose = Callable[[Mapping[Key, Digest]], int | None]
_LOOKS: Final = 5
_PAUSE: Final = 0.5  # seconds between two looks at files that are still being written


@dataclass(frozen=True)
class Expected:
    """What a checkpoint should hold, as a guard knows it.

    Attributes:
        attempt, step: whose result it should be.
        left: the tensors that the step left, with their digests; {} where that is not known.
        doubts: reasons known beforehand why it is not clean.
        unproven: reasons known beforehand why it cannot be called clean.
    """

    attempt: int
    step: int
    left: Mapping[Key, Left]
    doubts: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


def sealed_checkpoint(path: Path, expected: Expected, whose: Whose = lambda _: None) -> Seal:
    """Read a checkpoint's files back, compare them, and write their seal.

    Files that change meanwhile are read again: other ranks may still be writing theirs into the
    same folder. What changes every time is suspect.

    Args:
        path: a file, or a folder.
        expected: what it should hold.
        whose: the step that left tensors with these digests, if the trace knows.

    Raises:
        CheckpointUnreadable: nothing there, or a file cannot be read.
        UsageError: the seal cannot be written.
    """
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE)
        before = _state_of(path)
        contents = contents_of(path)
        files = hashed_files(path)
        tensors, damaged, infinite = _tensors_of(contents)
        if settled := _state_of(path) == before:
            break
    judged = compared(tensors, expected.left)
    odd = [name for name, one in tensors.items() if one.nan]
    odd += [name for name, key in judged.matched.items()
            if name in infinite and name not in odd and expected.left[key].trained]  # fmt: skip
    wrong = [*damaged, *(f"not finite: {name}" for name in odd)]
    status, reasons = _judgement(expected, contents, judged, tensors, whose, wrong)
    if not settled:
        status, reasons = "suspect", [*reasons, "its files changed while they were sealed"]
    guarded = Guarded(expected.attempt, expected.step, status, tuple(reasons), judged.matched)
    seal = Seal(
        expected.step, contents.format, files, tuple(tensors), tensors,
        path.name, float(int(time.time())), True, guarded,
    )  # fmt: skip
    publish_seal(path, seal)
    return seal


def _judgement(
    expected: Expected,
    contents: Contents,
    judged: Judged,
    tensors: Mapping[str, SealedTensor],
    whose: Whose,
    wrong: list[str],
) -> tuple[Status, list[str]]:
    status, reasons = judgement(judged, expected.left, tensors, expected.step, whose)
    unread = [f"{name}: {why}" for name, why in contents.unread.items()]
    if expected.doubts or wrong:
        return "suspect", [*expected.doubts, *wrong, *reasons, *unread]
    if status == "clean" and (unread or expected.unproven):
        status = "untested"
    return status, [*reasons, *expected.unproven, *unread]


def _tensors_of(contents: Contents) -> tuple[dict[str, SealedTensor], list[str], set[str]]:
    """Each tensor as it is, one at a time in memory; what is damaged; what holds infinities."""
    found: dict[str, SealedTensor] = {}
    damaged: list[str] = []
    infinite: set[str] = set()
    for name, held in contents.tensors.items():
        try:
            sound = held.crc()
            tensor = held.read()
        except CheckpointUnreadable as error:
            damaged.append(f"{name}: {error.what}")
            continue
        if sound is False:
            damaged.append(f"{name}: CRC mismatch")
        values = nonfinite(tensor)
        if values.infinite:
            infinite.add(name)
        found[name] = _sealed(tensor, held.dtype, values.nan)
    return found, damaged, infinite


def _sealed(tensor: torch.Tensor, dtype: torch.dtype, nan: int) -> SealedTensor:
    shape, kind = tuple(tensor.shape), str(dtype).removeprefix("torch.")
    return SealedTensor(kind, shape, digest_tensor(tensor), nan)


def _state_of(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file."""
    try:
        stats = {name: file.stat() for name, file in files_of(path)}
    except OSError as error:
        raise CheckpointUnreadable(f"cannot be read ({error.strerror})", where=str(path)) from None
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
