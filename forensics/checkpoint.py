"""A checkpoint as the search sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

UNKNOWN_ATTEMPT = 0
Status = Literal["untested", "clean", "suspect", "corrupt"]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        step: the step whose result it holds.
        path: its folder or file.
        format: name of the format.
        status: what its manifest says; "untested" without one.
        reasons: why it is not clean.
        attempt: the attempt that wrote it, or UNKNOWN_ATTEMPT.
        readable: False when its content cannot be judged (truncated, incomplete).
        named_step: the step that its name says, where that is another one; None if it is not.
        notes: what is worth telling and no reason to doubt its content: bytes after the last
            tensor, a step taken from the name for want of another.
        resumable: whether a training can go on from it exactly, as far as is known: a copy of the
            weights alone can be judged and compared, and not replayed from.
    """

    step: int
    path: Path
    format: str
    status: Status
    reasons: tuple[str, ...] = ()
    attempt: int = UNKNOWN_ATTEMPT
    readable: bool = True
    named_step: int | None = None
    notes: tuple[str, ...] = ()
    resumable: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The checkpoint in JSON output."""
        return {
            "step": self.step,
            "path": str(self.path),
            "format": self.format,
            "status": self.status,
            "reasons": list(self.reasons),
            "readable": self.readable,
            "named_step": self.named_step,
            "notes": list(self.notes),
        }
