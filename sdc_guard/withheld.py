"""Leaving out an optimizer's step: without gradients it changes nothing."""

from __future__ import annotations

import torch


class WithheldGradients:
    """Takes the gradients away from optimizers for one step, and gives them back."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Let the optimizers find no gradient: they pass such parameters over, state and all."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._kept.append((parameter, parameter.grad))
                        parameter.grad = None

    def give_back(self) -> None:
        """Put the gradients back where the script expects them."""
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient
        self._kept = []
