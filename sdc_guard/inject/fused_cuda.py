"""Corrupting a tensor on a CUDA device in one launch: `corrupt_by_torch`, bit for bit.

Each thread does a row of the plan. It is whole numbers alone, and threads write to words of their
own: nothing depends on their order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import torch
import triton
import triton.language as tl

from ..digest import lanes
from .bits import as_integers, levels
from .formats import WordFormat, format_of
from .operation import LOG_COLUMNS, PLAN_COLUMNS

MOST_LEVELS: Final = 4  # of a tensor's dimensions, once those that follow each other are joined
_ROWS = tl.constexpr(128)
_PLAN = tl.constexpr(PLAN_COLUMNS)
_LOG = tl.constexpr(LOG_COLUMNS)
_K = tl.constexpr(lanes.K)
_M1 = tl.constexpr(lanes.M1)
_M2 = tl.constexpr(lanes.M2)
_WHOLE = tl.constexpr(-1)


def corrupt(
    tensor: torch.Tensor, plan: torch.Tensor, step: torch.Tensor, log: torch.Tensor
) -> bool:
    """`corrupt` by the kernel; nothing waits for the device.

    Returns:
        whether it was done: not for a tensor whose memory is nested deeper than MOST_LEVELS.
    """
    integers = as_integers(tensor)
    steps = levels(integers.shape, integers.stride())
    if len(steps) > MOST_LEVELS:
        return False
    rows = len(plan)
    if not rows or not integers.numel():
        return True
    outer = [(1, 0)] * (MOST_LEVELS - len(steps)) + steps
    device = tensor.device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        corrupt_words[(triton.cdiv(rows, _ROWS.value),)](
            integers, plan, step, log, rows, integers.numel(),
            *(size for size, _ in outer[1:]), *(stride for _, stride in outer),
            **constants(format_of(tensor.dtype)),
        )  # fmt: skip
    return True


def constants(form: WordFormat) -> dict[str, int]:
    """What the kernel is built for: a format of words."""
    number = form.number
    return {
        "width": form.width,
        "mantissa": -1 if number is None else number.mantissa,
        "top": 0 if number is None else number.top,
        "above": 0 if number is None else number.above,
        "negative_zero": 1 if number is None else int(number.negative_zero),
    }


def _kernel(**options: Any) -> Callable[[Any], Any]:
    jit: Any = triton.jit
    return lambda function: jit(function, **options)


@_kernel()
def _scaled_magnitude(magnitude, exponent, mantissa: tl.constexpr, top: tl.constexpr):
    """As in `scaling`; what is above the top may be any number above it, or negative."""
    field = magnitude >> mantissa
    hidden = (field > 0).to(tl.int64) << mantissa
    significand = (magnitude & ((1 << mantissa) - 1)) | hidden
    power = tl.maximum(field, 1) + exponent
    highest = (significand.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    target = tl.maximum(power + highest - mantissa, 1)
    up = tl.minimum(tl.maximum(power - target, 0), mantissa)
    by = tl.minimum(tl.maximum(target - power, 0), 62)
    value = significand << up
    kept = value >> by
    rest = value - (kept << by)
    half = tl.full(by.shape, 1, tl.int64) << tl.maximum(by - 1, 0)
    more = (by > 0) & ((rest > half) | ((rest == half) & ((kept & 1) == 1)))
    rounded = kept + more.to(tl.int64)
    return (tl.minimum(target - 1, top >> mantissa) << mantissa) + rounded


@_kernel()
def _scaled(
    word,
    exponent,
    width: tl.constexpr,
    mantissa: tl.constexpr,
    top: tl.constexpr,
    above: tl.constexpr,
    negative_zero: tl.constexpr,
):
    if mantissa == 0:
        moved = tl.minimum(tl.maximum(word + exponent, 0), above)
        result = tl.where(word > top, word, moved)
    else:
        magnitude = word & ((1 << (width - 1)) - 1)
        sign = word ^ magnitude
        found = _scaled_magnitude(magnitude, exponent, mantissa, top)
        found = tl.where((found > top) | (found < 0), above, found)
        if not negative_zero:
            sign = tl.where((found == 0) | (found == above), 0, sign)
        stays = (magnitude == 0) | (magnitude > top)
        result = tl.where(stays, word, found | sign)
    return result


@_kernel()
def _drawn(key, step):
    """In [0, 2⁶²): number step + 1 of SplitMix64 from a key."""
    mixed = key.to(tl.uint64, bitcast=True) + (step + 1).to(tl.uint64, bitcast=True) * _K
    mixed = (mixed ^ (mixed >> 30)) * _M1
    mixed = (mixed ^ (mixed >> 27)) * _M2
    mixed = mixed ^ (mixed >> 31)
    return (mixed >> 2).to(tl.int64, bitcast=True)


@_kernel(
    do_not_specialize=[
        "rows", "count", "size1", "size2", "size3", "stride0", "stride1", "stride2", "stride3",
    ]
)  # fmt: skip
def corrupt_words(
    memory,
    plan,
    step,
    log,
    rows,
    count,
    size1,
    size2,
    size3,
    stride0,
    stride1,
    stride2,
    stride3,
    width: tl.constexpr,
    mantissa: tl.constexpr,
    top: tl.constexpr,
    above: tl.constexpr,
    negative_zero: tl.constexpr,
):
    """Do the rows of a plan that are due.

    Args:
        memory: integers, the tensor's words.
        plan, step, log: as of `corrupt`.
        rows: of the plan.
        count: words of the tensor.
        size1, size2, size3: of its dimensions from the second one on; of four.
        stride0, stride1, stride2, stride3: of all four.
        width: bits of a word.
        mantissa, top, above, negative_zero: see FloatFormat; -1: it is no such number.
    """
    row = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    inside = row < rows
    plan += row.to(tl.int64) * _PLAN
    log += row.to(tl.int64) * _LOG
    now = tl.load(step)
    index = tl.load(plan, inside, 0)
    first = tl.load(plan + 5, inside, 0)
    last = tl.load(plan + 6, inside, 0)
    chance = tl.load(plan + 7, inside, 0)
    drawn = _drawn(tl.load(plan + 8, inside, 0), now)
    fires = inside & (first <= now) & (now <= last) & (drawn < chance) & (index < count)
    above3 = index // size3
    above2 = above3 // size2
    above1 = above2 // size1
    place = memory + (
        (index - above3 * size3) * stride3
        + (above3 - above2 * size2) * stride2
        + (above2 - above1 * size1) * stride1
        + above1 * stride0
    )
    full: tl.constexpr = _WHOLE if width == 64 else (1 << width) - 1
    before = tl.load(place, fires, 0).to(tl.int64) & full
    after = before
    if mantissa >= 0:
        exponent = tl.load(plan + 4, fires, 0)
        after = _scaled(before, exponent, width, mantissa, top, above, negative_zero)
    after = after & tl.load(plan + 1, fires, 0)
    after = (after | tl.load(plan + 2, fires, 0)) ^ tl.load(plan + 3, fires, 0)
    tl.store(place, after.to(memory.dtype.element_ty), fires)
    # volatile: from memory, not from the register that was stored
    found = tl.load(place, fires, 0, volatile=True).to(tl.int64) & full
    tl.store(log, tl.load(log, fires, 0) + 1, fires)
    tl.store(log + 1, now, fires)
    tl.store(log + 2, before, fires)
    tl.store(log + 3, found, fires)
    tl.store(log + 4, tl.load(log + 4, fires, 0) + (found != after).to(tl.int64), fires)
