"""The list of checkpoints that `sdc-bisect index` prints."""

from __future__ import annotations

from collections.abc import Sequence

from .checkpoint import Checkpoint


def index_lines(found: Sequence[Checkpoint]) -> list[str]:
    """A line for each checkpoint: step, status, why, and in brackets what is worth telling."""
    return [_line(one) for one in found]


def _line(one: Checkpoint) -> str:
    reasons = f"  {'; '.join(one.reasons)}" if one.reasons else ""
    notes = f"  ({'; '.join(one.notes)})" if one.notes else ""
    return f"{one.step:>10}  {one.status:<8}{reasons}{notes}".rstrip()
