"""Corrupting a tensor on its device: which of the planned words are due, and the one operation.

    new = ((2**exponent · old AND a) OR o) XOR x

A plan is int64 (n, 9), a row for each word, on the tensor's device; masks are the signed numbers
of their bits. A log is int64 (n, 5) beside it. The step is an int64 scalar there, too: nothing
waits for a device, and nothing depends on values that the host would have to know, so a compiled
function or a CUDA graph that corrupts goes on doing so with another step, plan and log contents.
"""

from __future__ import annotations

from typing import Final

import torch

from ..digest.lanes import K
from ..digest.reference import mix64_tensor, signed64, unsigned
from .bits import as_integers, memory, offsets
from .formats import WordFormat, format_of
from .scaling import scaled

# columns of a plan
INDEX, AND, OR, XOR, EXPONENT, FIRST, LAST, CHANCE, KEY = range(9)
PLAN_COLUMNS: Final = 9
# columns of a log: times that it fired, the last step, the word before and as read back after
# that, and how often what was read back was not what had been written
FIRED, STEP, BEFORE, AFTER, UNLIKE = range(5)
LOG_COLUMNS: Final = 5
CERTAIN: Final = 1 << 62  # as chance: each time; a draw lies below it


def corrupt_by_torch(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> None:
    """`corrupt` (see there) by plain torch, on any device: what the kernel must reproduce."""
    integers = as_integers(tensor)
    fires = due(plan, step, integers.numel())
    if not integers.numel() or (fires.device.type == "cpu" and not bool(fires.any())):
        return
    row = memory(integers)
    places = offsets(integers, plan[:, INDEX].clamp(0, integers.numel() - 1))
    before = unsigned(row[places])
    after = changed(before, plan, format_of(tensor.dtype))
    found = write(row, places, before, after, fires)
    new = torch.stack(
        [
            log[:, FIRED] + 1,
            step.expand(before.shape),
            before,
            found,
            log[:, UNLIKE] + (found != after),
        ],
        1,
    )
    log.copy_(torch.where(fires[:, None], new, log))


def due(plan: torch.Tensor, step: torch.Tensor, count: int) -> torch.Tensor:
    """Which rows of a plan fire at a step, bool (n,).

    A row with a chance draws number step + 1 of the SplitMix64 generator with its key as the seed.

    Args:
        count: words of the tensor.
    """
    drawn = mix64_tensor(plan[:, KEY] + (step + 1) * signed64(K)) >> 2 & CERTAIN - 1
    return (
        (plan[:, FIRST] <= step)
        & (step <= plan[:, LAST])
        & (drawn < plan[:, CHANCE])
        & (plan[:, INDEX] < count)
    )


def changed(words: torch.Tensor, plan: torch.Tensor, form: WordFormat) -> torch.Tensor:
    """What a plan makes of words, as int64 with the bits above a word's width zero."""
    if form.number is not None:
        words = scaled(words, plan[:, EXPONENT], form.width, form.number)
    return ((words & plan[:, AND]) | plan[:, OR]) ^ plan[:, XOR]


def write(
    row: torch.Tensor,
    places: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    where: torch.Tensor,
) -> torch.Tensor:
    """Change words where asked from what they are to others, and read all of them back.

    Differences are added, of 0 where nothing is asked, so that a place may stand twice as long as
    it is asked for once.

    Args:
        row: the memory, integers of the words' size.
        places: int64, in it; of each word.
        before, after: int64; the bits above a word's width are zero.
        where: bool.
    """
    difference = torch.where(where, after - before, 0).to(row.dtype)
    row.scatter_add_(0, places, difference)
    return unsigned(row[places])
