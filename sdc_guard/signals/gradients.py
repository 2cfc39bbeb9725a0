"""Gradients where they are reduced and not yet clipped.

A post-accumulate hook on every parameter fires under torch.compile, on sharded parameters and
with in-place activations, where module hooks do not. The first one of a backward queues a
callback on the autograd engine; that callback queues itself once more, so that it runs after the
callback by which DistributedDataParallel ends its reduction. It measures what has been
accumulated by then, before anything can clip it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..digest.reference import stack_rows
from ..store.run_file import Layer

MEASURES = ("norm", "max_abs", "mean_abs", "nonfinite", "zeros")
_CHUNK = 1 << 24  # elements at a time: bounds the temporary float64 copy at 128 MB


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
        self._under_way: weakref.ref[_EndOfBackward] | None = None
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
        if self._under_way is not None and self._under_way() is not None:
            return
        end = _EndOfBackward(self)
        if self.queue(end):
            self._under_way = weakref.ref(end)

    def queue(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called when the backward under way ends; False when that fails."""
        try:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(callback)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring gradients", error)
            return False
        return True

    def measure_now(self) -> None:
        """Measure what the backward that ends now left in the parameters."""
        self._under_way = None
        try:
            self.backwards += 1
            self._measured = measure(self._parameters)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring gradients", error)


class _EndOfBackward:
    """Called twice by the autograd engine at the end of a backward, which alone keeps it alive.

    A backward that ends by an exception calls nothing, and lets go of it: so the next one is
    not taken for a part of it.
    """

    def __init__(self, capture: GradientCapture) -> None:
        self._capture = capture
        self._last = False

    def __call__(self) -> None:
        if self._last:
            self._capture.measure_now()
            return
        self._last = True
        self._capture.queue(self)


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
        return [layer for layer, _ in present], stack_rows(rows)


def _measure_one(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    flat = gradient.detach().reshape(-1)
    if not flat.numel():
        return torch.zeros(len(MEASURES), dtype=torch.float64, device=flat.device)
    parts = torch.stack([_measure_flat(part) for part in torch.split(flat, _CHUNK)])
    norm, largest, total, nonfinite, zeros = parts.unbind(1)
    return torch.stack(
        [
            torch.linalg.vector_norm(norm),
            largest.max(),
            total.sum() / flat.numel(),
            nonfinite.sum(),
            zeros.sum(),
        ]
    )


def _measure_flat(flat: torch.Tensor) -> torch.Tensor:
    """Norm, max|g|, sum of |g|, non-finite and zero elements, in float64."""
    wide = flat.to(torch.complex128 if flat.is_complex() else torch.float64)
    size = wide.abs()
    return torch.stack(
        [
            torch.linalg.vector_norm(size),
            size.max(),
            size.sum(),
            (flat.numel() - torch.isfinite(wide).sum()).to(torch.float64),
            (flat.numel() - torch.count_nonzero(wide)).to(torch.float64),
        ]
    )
