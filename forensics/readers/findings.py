"""From what the beginnings of a checkpoint's files say to a `Checkpoint`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..checkpoint import Checkpoint
from .step_of import Named, settle, step_in_name

_LARGEST: Final = 2**63 - 1  # steps are signed 64-bit numbers in a trace
_NO_STEP: Final = re.compile(r"-\d{5,}-of-\d{5,}|(?:fp|bf|int)\d+", re.I)  # shards, data types


@dataclass(frozen=True)
class Findings:
    """What was found without reading tensors.

    Attributes:
        reasons: what is wrong.
        notes: what is worth telling and no reason to doubt the content.
        readable: whether the content can be judged.
        step: that the files themselves say; None if they do not.
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    readable: bool = True
    step: int | None = None

    def checkpoint(self, path: Path, format: str, *names: str) -> Checkpoint:
        """The checkpoint; its step from the first of `names` that has one, if not from inside."""
        named = next((step for name in names if (step := _named(name)) is not None), None)
        settled = settle(self.step, named)
        return Checkpoint(
            settled.step, path, format, "untested", self.reasons, readable=self.readable,
            named_step=settled.named_step, notes=(*self.notes, *settled.notes),
        )  # fmt: skip


def _named(name: str) -> Named | None:
    """The number in a name that may be its step."""
    return step_in_name(_NO_STEP.sub(" ", name))


def as_step(text: object) -> int | None:
    """A step that a file gives as a number or a text; None if it is neither."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20:
        text = int(text)
    return text if type(text) is int and 0 <= text <= _LARGEST else None
