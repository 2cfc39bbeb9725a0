"""Checkpoints that the trace records and that are not in the archive any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sdc_guard.store.trace_reader import TraceReader

from .result import Result

_MOST: Final = 10  # steps in a sentence
_RECORDED: Final = "SELECT DISTINCT step FROM checkpoints ORDER BY step"


def recorded_steps(reader: TraceReader) -> list[int]:
    """Steps of the checkpoints that the run saved, by its own record."""
    return [int(step) for (step,) in reader.rows(_RECORDED)]


def with_missing(result: Result, recorded: Iterable[int], there: Sequence[int]) -> Result:
    """The answer as a range where a checkpoint that was saved is missing inside of it.

    Args:
        result: of a search.
        recorded: steps that were saved.
        there: steps of the checkpoints that are there.
    """
    low, high = result.last_clean, result.first_corrupt
    if result.first_good:
        low, high = result.last_corrupt, result.first_clean
    if high is None or not result.stable:
        return result
    known = {*there}
    gone = [
        step
        for step in recorded
        if step not in known and step < high and (low is None or low < step)
    ]
    if not gone:
        return result
    steps = ", ".join(map(str, gone[:_MOST])) + ", ..." * (len(gone) > _MOST)
    one = len(gone) == 1
    said = (
        f"missing: the checkpoint{'' if one else 's'} of step{'' if one else 's'} {steps}, which "
        f"the run saved, {'is' if one else 'are'} not in the archive: the first corrupt one may "
        f"be {'it' if one else 'one of them'}"
    )
    return replace(result, exact=False, evidence=(*result.evidence, said))
