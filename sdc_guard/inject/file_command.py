"""`sdc-guard inject --file`: from its options to what is said of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .fault import Change, Fault
from .file import corrupt_file, revert_file
from .file_record import record_of

Say = Callable[[str], None]


@dataclass(frozen=True)
class FileOptions:
    """What the command was given; None for what was left out."""

    seed: int = 0
    offset: int | None = None
    index: int | None = None
    tensor: str | None = None
    bits: tuple[int, ...] | None = None
    change: Change = "flip"
    value: float | None = None
    exponent: int | None = None
    out: Path | None = None
    in_place: bool = False
    revert: bool = False


def inject_into_file(path: Path, options: FileOptions, say: Say) -> dict[str, Any]:
    """Corrupt a file, or put it back.

    Returns:
        what was done, as JSON values.

    Raises:
        UsageError: options that do not go together.
        InjectionError: it cannot be done.
        CheckpointUnreadable: a tensor was named, and the file is no torch.save zip file.
    """
    _check(options)
    if options.revert:
        back, alone = revert_file(path)
        say(f"{back} bytes of {path} put back")
        if alone:
            say(f"{len(alone)} were written to since, and are left alone: {_some(alone)}")
        return {"put_back": back, "left_alone": alone}
    fault = Fault(
        "file", 0, options.tensor, options.offset if options.tensor is None else options.index,
        bits=options.bits, change=options.change, value=options.value, exponent=options.exponent,
    )  # fmt: skip
    injection = corrupt_file(path, fault, options.seed, out=options.out)
    target = options.out or path
    name = "" if injection.tensor is None else f" of {injection.tensor} ({injection.dtype})"
    for word in injection.touched:
        say(f"{target}: [{word.index}]{name} 0x{word.before:x} → 0x{word.after:x}")
    say(f"bytes {_some([byte.index for byte in injection.bytes])}; see {record_of(target)}")
    return injection.as_object()


def _check(options: FileOptions) -> None:
    if options.revert:
        if options.out is not None:
            raise UsageError("--revert with -o", next_step="it puts the file itself back")
        return
    if (options.out is None) == (not options.in_place):
        raise UsageError("where to?", next_step="-o COPY, or --in-place")
    if options.index is not None and options.tensor is None:
        raise UsageError("--index without --tensor", next_step="--offset counts the file's bytes")
    if options.offset is not None and options.tensor is not None:
        raise UsageError("--offset with --tensor", next_step="--index counts the tensor's elements")


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) or "none"
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
