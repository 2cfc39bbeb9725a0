"""Whether the stored state of an Adam-like optimizer is one that its arithmetic can reach."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from sdc_guard.detect.adam_limits import (
    EARLIER,
    ROUNDING,
    UNBOUNDED,
    MomentLimit,
    Rounding,
    moment_limit,
)
from sdc_guard.signals.invariants import MomentBound, check_state

from ..content import Content

_SQUARES: Final = "exp_avg_sq"
_MEANS: Final = "exp_avg"
_BETA: Final = re.compile(r"(.*betas)\.(0|1)")
_FINDINGS: Final = (
    "{count:,} elements beyond what any gradients can make them beside this exp_avg_sq",
    "{count:,} elements of exp_avg_sq below zero, which a mean of squares cannot be",
)


def impossible_moments(content: Content) -> Iterator[str]:
    """A line for each parameter whose moments Adam cannot have brought about.

    The bounds are those of `sdc_guard.detect.adam_limits`, for the betas that the checkpoint has;
    where it has none, exp_avg² ≤ EARLIER·exp_avg_sq, which any usual betas keep.

    Raises:
        CheckpointUnreadable: a tensor cannot be read.
    """
    betas = _betas(content)
    for name, squares in content.tensors.items():
        stem, _, last = name.rpartition(".")
        means = content.tensors.get(f"{stem}.{_MEANS}")
        rounding = ROUNDING.get(str(squares.dtype).removeprefix("torch."))
        if last != _SQUARES or means is None or rounding is None or not squares.numel:
            continue
        if (means.shape, means.dtype) != (squares.shape, squares.dtype):
            continue
        bound = _bound(betas, rounding)
        m, v = means.read().reshape(-1), squares.read().reshape(-1)
        counts = check_state(m, v, bound).tolist()
        for text, count, place in zip(_FINDINGS, counts[:2], counts[3:5], strict=True):
            if count:
                yield f"{stem}: {text.format(count=count)} (element {place})"


def _bound(betas: list[tuple[float, float]], rounding: Rounding) -> MomentBound:
    limit: MomentLimit | None = None
    for beta1, beta2 in betas:
        one = moment_limit(beta1, beta2, rounding)
        limit = one if limit is None else limit.joined(one)
    if limit is None:
        lost = MomentLimit(EARLIER, 1.0, 4e3 * rounding.tiny, 4e3 * rounding.tiny)
        limit = lost
    limit = limit if limit.bounded else UNBOUNDED
    return MomentBound(math.sqrt(limit.square), limit.v_lost, limit.m_lost)


def _betas(content: Content) -> list[tuple[float, float]]:
    """The pairs of betas in a checkpoint; [] if it has none that are in [0, 1)."""
    found: dict[str, dict[str, float]] = {}
    for name, value in content.numbers.items():
        if (match := _BETA.fullmatch(name)) and isinstance(value, (int, float)):
            found.setdefault(match[1], {})[match[2]] = float(value)
    pairs = [(pair["0"], pair["1"]) for pair in found.values() if len(pair) == 2]
    return [pair for pair in pairs if all(0 <= beta < 1 for beta in pair)]
