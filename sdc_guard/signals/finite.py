"""Parameters, moments and buffers that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from .buffers import Buffer, model_buffers
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
    return _reason(found)


def not_finite_buffers(model: torch.nn.Module) -> list[str]:
    """A reason for doubt if a saved buffer holds NaN, or the statistics of a norm an infinity.

    Waits for a device. Other buffers may hold infinities from the start, as masks and the ranges
    of observers do.

    Args:
        model: of this rank. What its state_dict leaves out (`persistent=False`) is not looked at.
    """
    found = []
    for buffer in model_buffers(model):
        tensor = buffer.tensor()
        if tensor is None or buffer.name in buffer.module._non_persistent_buffers_set:
            continue
        if not (_is_finite(tensor) or (_may_be_infinite(buffer) and not _has_nan(tensor))):
            found.append(f"{buffer.layer.name} buffer")
    return _reason(found)


def _reason(found: list[str]) -> list[str]:
    if not found:
        return []
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return [f"not finite: {', '.join(found[:_NAMED])}{more}"]


def _is_finite(tensor: torch.Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not tensor.numel():
        return True
    # the extremes are NaN if any element is; no table of truth values as large as the tensor
    return all(bool(value.isfinite()) for value in torch.aminmax(tensor.detach()))


def _has_nan(tensor: torch.Tensor) -> bool:
    return any(bool(value.isnan()) for value in torch.aminmax(tensor.detach()))


def _may_be_infinite(buffer: Buffer) -> bool:
    return not isinstance(buffer.module, torch.nn.modules.batchnorm._NormBase)
