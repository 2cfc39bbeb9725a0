"""What a Guard may be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch

from .errors import UsageError

Policy = Literal["record", "warn", "skip", "halt"]
POLICIES: Final = ("record", "warn", "skip", "halt")


def listed(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> list[torch.optim.Optimizer]:
    """One optimizer or several as a list.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    found = list(optimizer) if isinstance(optimizer, Sequence) else []
    if not found or not all(isinstance(one, torch.optim.Optimizer) for one in found):
        raise UsageError(
            "optimizer must be a torch.optim.Optimizer or a sequence of them",
            next_step="give the inner one where a library wraps it (accelerate: .optimizer)",
        )
    return found


def check(policy: str, first_step: int, digest_budget: float | None, audit_rate: float) -> None:
    """Refuse what cannot be meant.

    Raises:
        UsageError: an unknown policy, or a number out of its range.
    """
    if policy not in POLICIES:
        raise UsageError(f"no policy {policy!r}", next_step=f"use one of {', '.join(POLICIES)}")
    if first_step < 0:
        raise UsageError("first_step must be at least 0")
    if digest_budget is not None and not 0 <= digest_budget <= 100:
        raise UsageError(
            f"digest_budget is {digest_budget}, and must be a percentage",
            next_step="give 0 to 100, or None for every tensor at every step",
        )
    if not 0 <= audit_rate <= 1:
        raise UsageError(f"audit_rate is {audit_rate}, and must be a probability, 0 to 1")


def check_cadences(**cadences: int | None) -> None:
    """Refuse what is no number of steps.

    Args:
        **cadences: by the name of Guard's argument; None for never.

    Raises:
        UsageError: one is less than 1.
    """
    for name, steps in cadences.items():
        if steps is not None and steps < 1:
            raise UsageError(f"{name} must be at least 1, or None for never")


def group_sizes(optimizers: list[torch.optim.Optimizer]) -> list[int]:
    """How many parameters each of their groups has."""
    return [len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]
