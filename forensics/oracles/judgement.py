"""What an oracle says of one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..checkpoint import Checkpoint
from ..search import Verdict


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason.

    Attributes:
        verdict: untestable is not corrupt.
        reason: one line.
        stored_bytes: True when the bytes in the file are wrong and the training's were right, as
            far as recorded.
        watched: share of the state's transitions up to the checkpoint that were compared, between
            0 and 1; None when the judge does not look at them.
    """

    verdict: Verdict
    reason: str
    stored_bytes: bool = False
    watched: float | None = None


class Oracle(Protocol):
    """A judge of checkpoints.

    Attributes:
        name: as the command line calls it.
        proves: whether it compares exactly; else it only suspects.
        persists: whether by what it looks at a checkpoint after a corrupt one is corrupt, too,
            stored bytes aside: it needs no assumption that this is so.
        concurrent: whether it may judge several at once, from several threads or machines.
        cost: seconds that one judging takes, about; None when that is not known.
    """

    @property
    def name(self) -> str: ...

    @property
    def proves(self) -> bool: ...

    @property
    def persists(self) -> bool: ...

    @property
    def concurrent(self) -> bool: ...

    @property
    def cost(self) -> float | None: ...

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Judge one checkpoint."""
        ...
