"""The steps that a checkpoint's parts count, against each other and against its neighbours'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content
from .neighbours import Neighbours

_OF_RANK: Final = re.compile(r"[^.]*/(global_steps?|iteration|step)")
_OF_OPTIMIZER: Final = re.compile(r"(.*\.)?state\..+\.step")
_MOST_COUNTERS: Final = 64  # all parameters of an optimizer count alike, as a rule


def ranks_disagree(content: Content) -> Iterator[str]:
    """A line for a step that the files of two ranks say differently."""
    said: dict[str, dict[int | float | str, str]] = {}
    for name, value in content.numbers.items():
        if (match := _OF_RANK.fullmatch(name)) and not isinstance(value, bool):
            said.setdefault(match[1], {}).setdefault(value, name.rpartition("/")[0])
    for key, values in said.items():
        if len(values) > 1:
            named = ", ".join(f"{value} in {part}" for value, part in list(values.items())[:3])
            yield f"ranks disagree on {key}: {named}"


def out_of_step(one: Checkpoint, content: Content, near: Neighbours) -> Iterator[str]:
    """A line if the optimizer's own count is off by what neither neighbour's is.

    A scaler that skips steps changes the difference for good, an accumulation keeps it growing: so
    only one that both neighbours agree on counts.
    """
    before, after = near.before(one), near.after(one)
    if not before or after is None:
        return
    counts = [_count(near, neighbour) for neighbour in (before[0], after)]
    mine = optimizer_steps(content)
    if mine is None or counts[0] is None or counts[1] is None:
        return
    usual = counts[0] - before[0].step
    if usual == counts[1] - after.step != mine - one.step:
        expected = one.step + usual
        yield f"its optimizer counts {mine} steps, by the checkpoints beside it {expected}"


def _count(near: Neighbours, checkpoint: Checkpoint) -> int | None:
    content = near.content(checkpoint)
    return None if isinstance(content, str) else optimizer_steps(content)


def optimizer_steps(content: Content) -> int | None:
    """The largest count of updates in an Adam-like optimizer's state; None without one."""
    counts = [
        int(value)
        for name, value in content.numbers.items()
        if _OF_OPTIMIZER.fullmatch(name) and isinstance(value, (int, float)) and value == value
    ][:_MOST_COUNTERS]
    stored = [
        tensor
        for name, tensor in content.tensors.items()
        if _OF_OPTIMIZER.fullmatch(name) and tensor.numel == 1
    ]
    for tensor in stored[:_MOST_COUNTERS]:
        try:
            value = float(tensor.read().item())
        except (CheckpointUnreadable, TypeError):  # complex numbers are no count
            continue
        if value.is_integer() and abs(value) < 2**53:
            counts.append(int(value))
    return max(counts, default=None)
