"""Gradients that the compiled functions can read where they lie, in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def is_usual(gradient: torch.Tensor) -> bool:
    """Whether a gradient is float32, contiguous, on the CPU, and a tensor by itself."""
    return (
        type(gradient) is torch.Tensor
        and gradient.is_cpu
        and gradient.dtype is torch.float32
        and gradient.layout is torch.strided
        and gradient.is_contiguous()
    )


def addresses(gradients: Sequence[torch.Tensor | None], numel: Sequence[int]) -> list[int]:
    """Where the elements of each begin; 0 for one that is not usual, or not of `numel` elements.

    `is_usual` of all of them in one function: between the kernels of a training each call counts.
    """
    plain, kind, strided = torch.Tensor, torch.float32, torch.strided
    return [
        one.data_ptr()
        if type(one) is plain
        and one.is_cpu
        and one.dtype is kind
        and one.layout is strided
        and one.numel() == count
        and one.is_contiguous()
        else 0
        for one, count in zip(gradients, numel, strict=True)
    ]


def promises_usual(parameter: torch.Tensor) -> bool:
    """Whether the gradients of a parameter can be expected to be usual."""
    return parameter.is_cpu and parameter.dtype is torch.float32


def is_ours_alone(parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
    """Whether a usual gradient may be read later in this backward than in its hook.

    Not where another hook of the parameter may write to it right after ours: clip it, for one.
    """
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", ())
    return len(hooks) == 1 and is_usual(gradient)
