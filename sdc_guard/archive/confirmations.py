"""confirmations.jsonl: what was found of a run's checkpoints later, and speaks for them.

A manifest says what was known when it was sealed, and stays as it is. What speaks against a
checkpoint is in convictions.jsonl; both are appended, one JSON object a line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from .line_file import read_lines
from .manifest import Manifest

FILE: Final = "confirmations.jsonl"
AWAITED: Final = "its forward pass is still to be compared"
"""The only reason of a checkpoint that is untested until it is confirmed."""


@dataclass(frozen=True)
class Confirmation:
    """Something that speaks for a checkpoint.

    Attributes:
        checkpoint: name of its folder, or its path relative to the run's folder.
        step, attempt: of it.
        by: what was done: "shadow" or "command".
        text: what it showed, in a line.
        time: seconds since the epoch.
    """

    checkpoint: str
    step: int
    attempt: int
    by: str
    text: str
    time: float


def read_confirmations(archive: Path) -> list[Confirmation]:
    """Those of an archive folder, oldest first; damaged lines are passed over aloud."""
    return read_lines(archive / FILE, _parsed)


def add_confirmation(archive: Path, one: Confirmation) -> None:
    """Append one.

    Raises:
        OSError: the archive cannot be written.
    """
    archive.mkdir(parents=True, exist_ok=True)
    with (archive / FILE).open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        torn = b"" if not end or file.read(1) == b"\n" else b"\n"
        file.write(torn + json.dumps(asdict(one)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def settled(folder: Path, manifest: Manifest, confirmations: Iterable[Confirmation]) -> Manifest:
    """The manifest, clean if all that it waited for is a forward pass that was compared since.

    A name may be taken again after its checkpoint was deleted: a confirmation from before this one
    was saved is of another.
    """
    if manifest.status != "untested" or manifest.reasons != (AWAITED,):
        return manifest
    if any(one.by == "shadow" and _is_of(one, folder, manifest) for one in confirmations):
        return replace(manifest, status="clean", reasons=())
    return manifest


def _is_of(one: Confirmation, folder: Path, manifest: Manifest) -> bool:
    said = one.checkpoint, one.attempt, one.step
    return said == (folder.name, manifest.attempt, manifest.step) and one.time >= manifest.created


def _parsed(row: dict[str, Any]) -> Confirmation:
    one = Confirmation(**row)
    texts = (one.checkpoint, one.by, one.text)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text that is none")
    if not all(type(number) is int for number in (one.step, one.attempt)):
        raise TypeError("a number that is none")
    if type(one.time) not in (int, float):
        raise TypeError("a time that is none")
    return one
