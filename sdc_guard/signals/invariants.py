"""What Adam's arithmetic cannot do: impossible pairs of moments, and impossible moves.

`detect.adam_limits` derives the bounds, `signals.optimizer_audit` says when to check what. Here
is the check of one flat slice. Nothing waits for the device, and nothing is written to.

What it sees: an exp_avg that a flip made large, an exp_avg_sq that one made small or negative, an
update that a fault made large. What it does not: a flip in a mantissa, the sign of exp_avg, a
small change of a parameter, an exp_avg that became smaller, an exp_avg_sq that became larger; and
what healed before it was looked at: an exp_avg_sq that lost its size is refilled by the next
gradients, and an exp_avg forgets in about 1/(1−β₁) updates, more if it is huge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..detect.adam_limits import StepSlack
from .adam_groups import Number, StepSettings


@dataclass(frozen=True)
class MomentBound:
    """|m| ≤ factor·√(v + v_lost) + m_lost."""

    factor: Number
    v_lost: float = 0.0
    m_lost: float = 0.0


@dataclass(frozen=True)
class StepBound:
    """|Δθ| ≤ fixed + per_size·|θ|, θ before the step."""

    fixed: Number
    per_size: Number


def check_state(m: torch.Tensor, v: torch.Tensor, bound: MomentBound) -> torch.Tensor:
    """Count impossible pairs of moments.

    Args:
        m: exp_avg, flat, of at least one element.
        v: exp_avg_sq, of the same shape, dtype and device.
        bound: what m may be beside v.

    Returns:
        int64 (6,) on their device: how many pairs are beyond the bound, have a negative v, are
        not finite; then the place of one of each, 0 where there is none.
    """
    m, v = _wide(m), _wide(v)
    allowed = (v + bound.v_lost).sqrt_().mul_(bound.factor).add_(bound.m_lost)
    # a comparison with NaN is false: such a pair is counted once, as not finite
    masks = [m.abs() > allowed, v < 0, _zeroed(m).add_(_zeroed(v)) != 0]
    counts = [torch.count_nonzero(mask) for mask in masks]
    return torch.stack([*counts, *(mask.view(torch.uint8).argmax() for mask in masks)])


def check_step(before: torch.Tensor, after: torch.Tensor, bound: StepBound) -> torch.Tensor:
    """Count elements that moved further than the bound.

    Args:
        before: a copy of a parameter's elements from before the step, flat, at least one.
        after: the same elements after it.
        bound: how far they may move.

    Returns:
        float64 (3,) on their device: how many moved too far, the place of the one that moved
        furthest beside its bound, and its |Δθ| over the bound.
    """
    start, now = _wide(before), _wide(after)
    # tiny: nothing that moved by nothing is not 0/0
    allowed = start.abs().mul_(bound.per_size).add_(bound.fixed).add_(torch.finfo(start.dtype).tiny)
    ratio = (now - start).abs_().div_(allowed).nan_to_num_(nan=torch.inf, posinf=torch.inf)
    ratio.masked_fill_(_zeroed(start) != 0, 0)  # lost before this step
    largest, where = ratio.max(0)
    row = [torch.count_nonzero(ratio > 1), where, largest]
    return torch.stack([value.to(torch.float64) for value in row])


def step_bound(
    factor: Number, slack: StepSlack, settings: StepSettings, updates: torch.Tensor
) -> StepBound:
    """The bound of one step.

    Args:
        factor: c of the moments after the step.
        slack: for rounding.
        settings: of the step.
        updates: float64 (), the number of the parameter's updates with this one. A step that was
            skipped on the device leaves 0: nothing moved, and any bound will do.
    """
    updates = updates.clamp(min=1)
    correction1 = 1 - settings.beta1**updates
    correction2 = (1 - settings.beta2**updates).sqrt()
    reach = factor * (correction2 * (1 + slack.relative) + slack.lost_per_c) + slack.lost
    return StepBound(
        fixed=settings.lr * reach / correction1,
        per_size=settings.lr * settings.weight_decay * (1 + slack.relative) + slack.rounded,
    )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements row by row, on this rank; of complex ones both parts.

    A view of a contiguous tensor; of another one a copy.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # sharded: a DTensor
        tensor = tensor.to_local()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _zeroed(row: torch.Tensor) -> torch.Tensor:
    """0, and NaN where an element is not finite: much faster than isfinite on a CPU."""
    return row * 0


def _wide(row: torch.Tensor) -> torch.Tensor:
    return row if row.dtype == torch.float64 else row.to(torch.float32)
