"""A judge of the state that is asked of files with sound bytes alone: damage says nothing of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
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
        looked_at: paths of those whose bytes checksums have judged already; they are not read
            again. Not steps: several files may be of one.
    """

    def __init__(self, oracle: Oracle, looked_at: Collection[Path] = ()) -> None:
        self._oracle = oracle
        self._bytes = IntegrityOracle()
        self._looked_at = frozenset(looked_at)
        self._read: dict[Path, tuple[int, Judgement]] = {}
        self.name = oracle.name
        self.proves = oracle.proves
        self.persists = oracle.persists
        self.concurrent = oracle.concurrent
        self.cost = oracle.cost

    def read(self) -> frozenset[Path]:
        """Paths of those whose bytes were read here."""
        return frozenset(self._read)

    def probes(self) -> tuple[dict[str, object], ...]:
        """What checksums said of those it was asked for, as `Result.probes` has it."""
        return tuple(
            {
                "step": step,
                "verdict": read.verdict,
                "reason": read.reason,
                "oracle": self._bytes.name,
            }
            for _, (step, read) in sorted(self._read.items(), key=lambda one: one[1][0])
        )

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """By its bytes, where these are damaged, else as the other judge."""
        if checkpoint.path not in self._looked_at:
            read = self._bytes.judge(checkpoint)
            self._read[checkpoint.path] = (checkpoint.step, read)
            if read.verdict == "corrupt":
                return Judgement("untestable", f"{DAMAGED}: {read.reason}", stored_bytes=True)
        return self._oracle.judge(checkpoint)
