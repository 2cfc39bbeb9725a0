"""From what the beginnings of a checkpoint's files say to a `Checkpoint`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..checkpoint import Checkpoint

_LARGEST: Final = 2**63 - 1  # steps are signed 64-bit numbers in a trace
_KEYS: Final = ("step", "global_step")
_SHARD: Final = re.compile(r"-\d{5,}-of-\d{5,}")
_AFTER_STEP: Final = re.compile(r"(?:step|iter|iteration)s?[-_=. ]?(\d+)", re.I)
_BEFORE_STEP: Final = re.compile(r"(\d+)[-_]?steps?", re.I)
_ALONE: Final = re.compile(r"(?<![A-Za-z0-9.])(\d+)(?![A-Za-z0-9.])")
_AT_THE_END: Final = re.compile(r"(?<!fp)(?<!bf)(?<!int)(?<![\d.])(\d+)$", re.I)


@dataclass(frozen=True)
class Described:
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
        named = next((step for name in names if (step := step_in(name)) is not None), None)
        notes, other = list(self.notes), None
        if self.step is None:
            notes.append(
                "no step inside and none in its name: taken as 0"
                if named is None
                else f"no step inside: {named:,} is from the name"
            )
        elif named is not None and named != self.step:
            other = named
            notes.append(f"the name says step {named}, inside it is step {self.step}")
        step = next((one for one in (self.step, named) if one is not None), 0)
        return Checkpoint(
            step, path, format, "untested", self.reasons,
            readable=self.readable, named_step=other, notes=tuple(notes),
        )  # fmt: skip


def step_in(name: str) -> int | None:
    """The step in a file's or folder's name, without its suffix; None if it has no number.

    The number after "step", else the last that stands alone, else one at the end; which of how
    many shards it is, and the bits of a data type (fp16), are none.
    """
    plain = _SHARD.sub("", name)
    for pattern in (_AFTER_STEP, _BEFORE_STEP, _ALONE, _AT_THE_END):
        found = pattern.findall(plain)
        if found and len(found[-1]) < 20 and int(found[-1]) <= _LARGEST:
            return int(found[-1])
    return None


def as_step(text: object) -> int | None:
    """A step that a file gives as a number or a text; None if it is neither."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20:
        text = int(text)
    return text if type(text) is int and 0 <= text <= _LARGEST else None


def saved_step(metadata: Mapping[str, object]) -> int | None:
    """The step among what was saved beside tensors."""
    found = (as_step(metadata.get(key)) for key in _KEYS)
    return next((one for one in found if one is not None), None)
