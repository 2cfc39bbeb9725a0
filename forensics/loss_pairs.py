"""Losses of a run beside those of its replay."""

from __future__ import annotations

from sdc_guard.store.trace_reader import TraceReader

from .sizes import Pair

_LOSSES = """
    SELECT step, s.loss, o.loss FROM steps AS s JOIN other.steps AS o USING (step, rank)
    WHERE step BETWEEN $first AND $last AND rank = $rank
        AND s.loss IS NOT NULL AND o.loss IS NOT NULL
    ORDER BY step
"""


def loss_pairs(
    original: TraceReader, replayed: TraceReader, first: int, last: int, rank: int = 0
) -> list[Pair]:
    """Those of the steps `first` to `last` that both recorded on one rank."""
    original.attach("other", replayed)
    span = {"first": first, "last": last, "rank": rank}
    return [Pair(*row) for row in original.rows(_LOSSES, span)]
