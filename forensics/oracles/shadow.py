"""A statistic: the loss of the pinned shadow batch against its own past. It suspects only."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import Final

from sdc_guard.errors import ArchiveIncomplete
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import Checkpoint
from .judgement import Judgement

MINIMUM_PAST: Final = 3
# A rise counts when it exceeds six robust σ of the past changes and 5 % of the loss: the first
# is the usual cut for a robust z, the second keeps a flat curve's tiny σ from accusing noise.
SIGMAS: Final = 6.0
SHARE: Final = 0.05
_MAD_TO_SIGMA: Final = 1.4826


class ShadowOracle:
    """Judges a checkpoint by the newest shadow loss at or before its step.

    Args:
        reader: of the run.

    Raises:
        ArchiveIncomplete: the run recorded no shadow losses.
    """

    name = "shadow"
    proves = False
    persists = True
    concurrent = False  # one reader of the trace, for one thread
    cost: float | None = None

    def __init__(self, reader: TraceReader) -> None:
        rows = reader.rows("SELECT step, loss FROM shadow WHERE rank = 0 ORDER BY step")
        if not rows:
            raise ArchiveIncomplete(
                "the run recorded no shadow loss",
                where=str(reader.run),
                next_step="give Guard(shadow=(batch, loss_fn)), or judge with --oracle trace",
            )
        self._bad_from = first_rise([loss for _, loss in rows])
        self._steps = [step for step, _ in rows]
        self._losses = [loss for _, loss in rows]

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt from the first unexplained rise of the shadow loss on."""
        places = [i for i, step in enumerate(self._steps) if step <= checkpoint.step]
        if len(places) <= MINIMUM_PAST:
            return Judgement("untestable", f"only {len(places)} shadow losses by then")
        newest = places[-1]
        text = f"shadow loss {self._losses[newest]:.6g} at step {self._steps[newest]}"
        if self._bad_from is not None and newest >= self._bad_from:
            return Judgement("corrupt", f"{text}, rose at step {self._steps[self._bad_from]}")
        return Judgement("clean", f"{text}, on its trend")


def first_rise(losses: list[float]) -> int | None:
    """Place of the first loss that is not finite, or rose more than its past explains."""
    for place, loss in enumerate(losses):
        if not math.isfinite(loss):
            return place
        past = losses[:place]
        if len(past) < MINIMUM_PAST:
            continue
        changes = [b - a for a, b in pairwise(past)]
        spread = median(abs(change - median(changes)) for change in changes)
        limit = max(SIGMAS * _MAD_TO_SIGMA * spread, SHARE * abs(past[-1]))
        if loss - past[-1] > limit:
            return place
    return None
