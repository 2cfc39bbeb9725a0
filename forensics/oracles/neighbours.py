"""The contents of the checkpoints around one, opened once each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content
from ..readers.known import reader_of

_KEPT: Final = 8  # opened structures; a model of many layers has large ones


class Neighbours:
    """Opens checkpoints, and says which stand beside one.

    Args:
        candidates: by step.
    """

    def __init__(self, candidates: Sequence[Checkpoint]) -> None:
        self._candidates = list(candidates)
        self._opened = lru_cache(_KEPT)(_opened)

    def content(self, checkpoint: Checkpoint) -> Content | str:
        """What a checkpoint holds, or why that cannot be told."""
        if not checkpoint.readable:
            return "; ".join(checkpoint.reasons)
        return self._opened(checkpoint)

    def before(self, checkpoint: Checkpoint, count: int = 1) -> list[Checkpoint]:
        """Up to `count` readable ones of smaller steps, the nearest first."""
        earlier = [x for x in self._candidates if x.readable and x.step < checkpoint.step]
        return earlier[::-1][:count]

    def after(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """The nearest readable one of a larger step."""
        return next((x for x in self._candidates if x.readable and x.step > checkpoint.step), None)

    def first(self) -> Checkpoint | None:
        """The first readable one."""
        return next((one for one in self._candidates if one.readable), None)

    def of_the_same_step(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Others that say the same step, of the same attempt."""
        return [
            one
            for one in self._candidates
            if (one.step, one.attempt) == (checkpoint.step, checkpoint.attempt)
            and one.path != checkpoint.path
        ]


def _opened(checkpoint: Checkpoint) -> Content | str:
    try:
        return reader_of(checkpoint.format).open(checkpoint)
    except CheckpointUnreadable as error:
        return error.what
    except OSError as error:  # a file that may not be read, or is gone by now
        return f"cannot be read: {error.strerror or error}"
