"""What a stored tensor is, by its name: a weight, or a state of the optimizer."""

from __future__ import annotations

import re
from typing import Final

from .content import Content, StoredTensor

# as torch.optim and what is built like it call them
_MOMENTS: Final = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta",
    "grad_avg", "sum", "exp_inf", "prev", "ax", "mu", "eta", "exp_avg_diff",
)  # fmt: skip
_STATE: Final = re.compile(
    r"(^|[./])(optim|optimizers?|optimizer_states?|\w*optim_states|state)([./]|$)"
)
_MOST_SCALARS: Final = 1  # elements: counters and scales are no layers


def is_moment(name: str) -> bool:
    """Whether a name is that of a state of an optimizer."""
    return name.rpartition(".")[2] in _MOMENTS or bool(_STATE.search(name))


def weights_of(content: Content) -> dict[str, StoredTensor]:
    """Floating-point tensors of several elements that are no optimizer's, smallest first."""
    return _smallest_first(content, moments=False)


def moments_of(content: Content) -> dict[str, StoredTensor]:
    """Floating-point tensors of several elements that are an optimizer's, smallest first."""
    return _smallest_first(content, moments=True)


def _smallest_first(content: Content, *, moments: bool) -> dict[str, StoredTensor]:
    chosen = [
        (name, tensor)
        for name, tensor in content.tensors.items()
        if tensor.dtype.is_floating_point
        and tensor.numel > _MOST_SCALARS
        and is_moment(name) == moments
    ]
    return dict(sorted(chosen, key=lambda item: item[1].numel))
