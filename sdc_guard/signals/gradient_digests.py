"""Digests of the gradients as they are when their norms are measured: reduced, not yet clipped."""

from __future__ import annotations

from typing import Any

import torch

from ..detect.carried import Key
from ..digest import digest_rows
from .gradients import GradientCapture
from .placement import local, of_gradient
from .state import NO_DIGESTS, PendingDigests

KIND = "grad"


class GradientDigests:
    """Takes the digest of each gradient at the end of each backward; the newest one counts.

    Passed over are gradients without rows of their own (sparse ones), and those of which this
    rank holds no run of the whole tensor or a term of a sum.
    """

    def __init__(self) -> None:
        self._taken: PendingDigests | None = None

    def tensors(self, capture: GradientCapture) -> dict[Key, torch.Tensor]:
        """This rank's part of each present gradient, by ("grad", number of the layer)."""
        return {(KIND, layer): tensor for layer, tensor, _ in _present(capture)}

    def take(self, capture: GradientCapture) -> None:
        """Digest the gradients as they are now, without waiting for their device."""
        present = _present(capture)
        if not present:
            self._taken = NO_DIGESTS
            return
        layers, tensors, offsets = zip(*present, strict=True)
        rows = digest_rows(list(tensors), offsets=offsets)
        self._taken = PendingDigests(tuple((KIND, layer) for layer in layers), rows)

    def of_step(self, capture: GradientCapture, *, stepped: bool) -> PendingDigests:
        """The newest digests, once.

        Args:
            capture: of the gradients.
            stepped: the step has been taken already, and may have dropped the gradients. Else
                they are digested now if no backward told that it ended.
        """
        if self._taken is None and not stepped:
            self.take(capture)
        taken, self._taken = self._taken, None
        return taken or NO_DIGESTS


def _present(capture: GradientCapture) -> list[tuple[int, torch.Tensor, Any]]:
    found = []
    for (layer, parameter), own in zip(capture.parameters, capture.placements, strict=True):
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            continue
        offset = of_gradient(own, gradient).offset
        if offset is not None:
            found.append((layer.id, local(gradient), offset))
    return found
