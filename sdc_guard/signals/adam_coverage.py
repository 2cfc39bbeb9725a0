"""Which optimizers and parameters the invariants of Adam hold for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.optim import Adam, AdamW, NAdam, RAdam

from ..detect.adam_limits import ROUNDING, moment_limit, step_slack
from .adam_groups import Group, betas_of, dtype_name, has_tensor_betas

# these keep their moments by the same two recursions; only the first two step by their quotient
_MOMENTS: Final = (Adam, AdamW, NAdam, RAdam)
_STEPS: Final = (Adam, AdamW)


@dataclass(frozen=True)
class Coverage:
    """What can be checked of a parameter.

    Attributes:
        moments: exp_avg against exp_avg_sq, signs, finiteness.
        step: how far the parameter moves.
        reason: why not all of it; "" when all is.
    """

    moments: bool
    step: bool
    reason: str = ""


def is_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer keeps its moments as Adam does."""
    return type(optimizer) in _MOMENTS


def covered(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Coverage:
    """Say what can be checked of a parameter with the optimizer's settings of now.

    Adam and AdamW are covered, and the moments of NAdam and RAdam, whose steps are other
    functions of the gradient. Adamax has an invariant of its own, which is not checked; SGD,
    LBFGS, Adafactor and Muon have none of the kind. SparseAdam is left out, and so are classes
    derived from those named: they may do anything.
    """
    if not is_adam(optimizer):
        return _nothing(f"{type(optimizer).__name__} is not known to keep moments as Adam does")
    group = next(
        (group for group in optimizer.param_groups if any(p is parameter for p in group["params"])),
        None,
    )
    if group is None:
        return _nothing("the optimizer does not train this parameter")
    return covered_in(optimizer, group, parameter.dtype)


def covered_in(optimizer: torch.optim.Optimizer, group: Group, dtype: torch.dtype) -> Coverage:
    """`covered` for a parameter of `dtype` in `group` of one of the covered optimizers."""
    rounding, betas = ROUNDING.get(dtype_name(dtype)), betas_of(group)
    if rounding is None:
        return _nothing(f"no bound is derived for the rounding of {dtype_name(dtype)}")
    if betas is None:
        return _nothing("the betas are on a device, where reading them would have to wait")
    limit = moment_limit(*betas, rounding, tensors=has_tensor_betas(group))
    if not limit.bounded:
        return _nothing(f"betas {betas[0]:g} and {betas[1]:g} bound nothing in {dtype_name(dtype)}")
    if type(optimizer) not in _STEPS:
        return Coverage(True, False, f"a step of {type(optimizer).__name__} is not bounded")
    if step_slack(limit, *betas, float(group["eps"]), rounding) is None:
        return Coverage(True, False, f"eps {group['eps']:g} is too small for {dtype_name(dtype)}")
    return Coverage(True, True)


def _nothing(reason: str) -> Coverage:
    return Coverage(False, False, reason)
