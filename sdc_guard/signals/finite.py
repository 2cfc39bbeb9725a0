"""Parameters and moments that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from .state import CarriedState

_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NAMED: Final = 3


def not_finite(state: CarriedState, names: Mapping[int, str]) -> list[str]:
    """A reason for doubt if what is trained holds NaN or an infinity; waits for a device.

    Args:
        state: of this rank. Frozen parameters may hold what they like: masks do.
        names: of the layers, by number.
    """
    found = [
        f"{names[key[1]]} {key[0]}"
        for key, tensor in state.tensors().items()
        if (parameter := state.parameter(key)) is not None
        and parameter.requires_grad
        and not _is_finite(tensor)
    ]
    if not found:
        return []
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return [f"not finite: {', '.join(found[:_NAMED])}{more}"]


def _is_finite(tensor: torch.Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not tensor.numel():
        return True
    # the extremes are NaN if any element is; no table of truth values as large as the tensor
    return all(bool(value.isfinite()) for value in torch.aminmax(tensor.detach()))
