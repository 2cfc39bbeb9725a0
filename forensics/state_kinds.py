"""What kind of state a stored tensor is, by its name, in the order of what matters most."""

from __future__ import annotations

import re
from typing import Final

import torch

from .tensor_roles import is_moment

PARAMETERS: Final = "parameters"
FIRST: Final = "first moments"
SECOND: Final = "second moments"
OTHER: Final = "other"
KINDS: Final = (PARAMETERS, FIRST, SECOND, OTHER)

# as torch.optim, and optimizers built like it, call them
_FIRST: Final = ("exp_avg", "momentum_buffer", "grad_avg", "exp_avg_diff", "mu")
_SECOND: Final = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "exp_inf", "sum", "nu")
_BUFFERS: Final = ("running_mean", "running_var", "num_batches_tracked", "inv_freq", "rng")
_RNG: Final = re.compile(r"(^|[._])rng([._]|$)|random_state")


def kind_of(name: str, dtype: torch.dtype | None) -> str:
    """One of KINDS.

    Args:
        name: of the tensor.
        dtype: of its elements; integers are no parameters. None where it is not known.
    """
    last = re.split(r"[./]", name)[-1]
    if is_moment(name):
        return FIRST if last in _FIRST else SECOND if last in _SECOND else OTHER
    numbers = dtype is None or dtype.is_floating_point or dtype.is_complex
    if not numbers and dtype not in (torch.int8, torch.uint8):  # quantised weights
        return OTHER
    return OTHER if last in _BUFFERS or _RNG.search(name) else PARAMETERS
