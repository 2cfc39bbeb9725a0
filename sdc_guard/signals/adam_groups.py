"""What a parameter group of Adam says: betas, learning rate, weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Group = dict[str, Any]
Number = float | torch.Tensor  # a tensor has shape () here


@dataclass(frozen=True)
class StepSettings:
    """What a step runs with; weight_decay is that which is decoupled from the gradient, or 0."""

    lr: Number
    weight_decay: Number
    beta1: float
    beta2: float


def betas_of(group: Group) -> tuple[float, float] | None:
    """The betas as numbers; None where reading them would wait for a device."""
    betas = group["betas"]
    if any(isinstance(beta, torch.Tensor) and beta.device.type != "cpu" for beta in betas):
        return None
    return float(betas[0]), float(betas[1])


def has_tensor_betas(group: Group) -> bool:
    """Whether the betas are tensors, which torch rounds to the dtype of the moments."""
    return isinstance(group["betas"][0], torch.Tensor)


def step_settings(
    optimizer: torch.optim.Optimizer, group: Group, device: torch.device
) -> StepSettings | None:
    """A group's settings of now, to be used on a device; None without readable betas."""
    betas = betas_of(group)
    if betas is None:
        return None
    # before torch 2.7 only the class says it
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return StepSettings(
        lr=beside(_kept(group["lr"]), device),
        weight_decay=beside(_kept(group["weight_decay"]), device) if decoupled else 0.0,
        beta1=betas[0],
        beta2=betas[1],
    )


def beside(number: Number, device: torch.device) -> Number:
    """A number that can be used with tensors of a device; without waiting for any."""
    if not isinstance(number, torch.Tensor) or number.device.type == "cpu":
        return number  # a CPU tensor of shape () goes with every device
    return number.to(device, non_blocking=True)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name, of a complex one that of its parts."""
    return str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch.")


def _kept(number: Any) -> Number:
    """A copy in float64 of a number that a scheduler may write to."""
    if not isinstance(number, torch.Tensor):
        return float(number)
    return number.detach().reshape(()).to(torch.float64, copy=True)
