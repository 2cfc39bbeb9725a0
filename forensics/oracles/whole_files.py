"""A judge of the state that is asked of files with sound bytes alone: damage says nothing of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..checkpoint import Checkpoint
from .integrity import IntegrityOracle
from .judgement import Judgement, Oracle

DAMAGED: Final = "its file is damaged, so its values say nothing of the training"


class WholeFiles:
    """Passes over what checksums call damaged; the rest is the other judge's.

    A checkpoint with damaged bytes is untestable here, and `stored_bytes` says that it is a
    damaged file. Bytes without a checksum are the other judge's, as sound ones are.

    Args:
        oracle: judges the state.
        looked_at: steps whose bytes checksums have judged already; they are not read again.
    """

    def __init__(self, oracle: Oracle, looked_at: Collection[int] = ()) -> None:
        self._oracle = oracle
        self._bytes = IntegrityOracle()
        self._looked_at = frozenset(looked_at)
        self._read: dict[int, Judgement] = {}
        self.name = oracle.name
        self.proves = oracle.proves
        self.persists = oracle.persists
        self.concurrent = oracle.concurrent
        self.cost = oracle.cost

    def probes(self) -> tuple[dict[str, object], ...]:
        """What checksums said of those it was asked for, as `Result.probes` has it."""
        return tuple(
            {
                "step": step,
                "verdict": read.verdict,
                "reason": read.reason,
                "oracle": self._bytes.name,
            }
            for step, read in sorted(self._read.items())
        )

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """By its bytes, where these are damaged, else as the other judge."""
        if checkpoint.step not in self._looked_at:
            read = self._read[checkpoint.step] = self._bytes.judge(checkpoint)
            if read.verdict == "corrupt":
                return Judgement("untestable", f"{DAMAGED}: {read.reason}", stored_bytes=True)
        return self._oracle.judge(checkpoint)
