"""Gradients where they are reduced and not yet clipped.

A post-accumulate hook on every parameter fires under torch.compile, on sharded parameters and
with in-place activations, where module hooks do not. The first one of a backward queues a
callback on the autograd engine; that callback queues itself once more, so that it runs after the
callback by which DistributedDataParallel ends its reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..store.run_file import Layer

MEASURES = ("norm", "max_abs", "mean_abs", "nonfinite", "zeros")


class GradientCapture:
    """Measures every gradient at the end of each backward; the newest backward counts.

    Args:
        parameters: layer and parameter, in the order of the layers' numbers.
        trouble: called with a place and an exception for what goes wrong in a hook.
    """

    def __init__(
        self,
        parameters: list[tuple[Layer, torch.nn.Parameter]],
        trouble: Callable[[str, BaseException], None],
    ) -> None:
        self._parameters = parameters
        self._trouble = trouble
        self._queued = False
        self._measured: tuple[list[int], torch.Tensor] | None = None
        self.backwards = 0
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call] # torch has no types here
            for _, parameter in parameters
            if parameter.requires_grad
        ]

    def take(self) -> tuple[list[int], torch.Tensor] | None:
        """The newest measures, once: layer numbers, and float64 (len, 5) in MEASURES' order."""
        measured, self._measured = self._measured, None
        self.backwards = 0
        return measured

    def remove(self) -> None:
        """Remove the hooks that this object registered, and no others."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _on_gradient(self, _: torch.Tensor) -> None:
        if self._queued:
            return
        self._queued = True
        self._queue(self._after_own_callbacks)

    def _after_own_callbacks(self) -> None:
        self._queue(self._after_backward)

    def _after_backward(self) -> None:
        self._queued = False
        try:
            self.backwards += 1
            self._measured = measure(self._parameters)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring gradients", error)

    def _queue(self, callback: Callable[[], None]) -> None:
        try:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(callback)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._queued = False
            self._trouble("measuring gradients", error)


def measure(
    parameters: list[tuple[Layer, torch.nn.Parameter]],
) -> tuple[list[int], torch.Tensor] | None:
    """Norm, max|g|, mean|g|, non-finite and zero elements of each present gradient.

    The sums run in float64, so a norm neither overflows nor loses digits in large tensors.
    """
    present = [(layer.id, p.grad) for layer, p in parameters if p.grad is not None]
    if not present:
        return None
    with torch.no_grad():
        rows = [_measure_one(gradient) for _, gradient in present]
        return [layer for layer, _ in present], torch.stack(rows)


def _measure_one(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    flat = gradient.detach().reshape(-1)
    if not flat.numel():
        return torch.zeros(len(MEASURES), dtype=torch.float64, device=flat.device)
    size = flat.abs().to(torch.float64)
    nonfinite = flat.numel() - torch.isfinite(flat).sum()
    zeros = flat.numel() - torch.count_nonzero(flat)
    return torch.stack(
        [
            torch.linalg.vector_norm(size),
            size.max(),
            size.mean(),
            nonfinite.to(torch.float64),
            zeros.to(torch.float64),
        ]
    )
