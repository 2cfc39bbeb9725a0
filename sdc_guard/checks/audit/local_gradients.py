"""Digests of this rank's own gradients, before those of other ranks are added."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import torch

from ...digest import digest_rows
from ...digest.reference import stack_rows


class LocalGradients:
    """Hooks on parameters for the time of one step.

    They run when a gradient was accumulated; DistributedDataParallel reads it right after them.

    Args:
        parameters: whose gradients are meant.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._found: dict[int, torch.Tensor] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._digest, place))  # type: ignore[no-untyped-call] # torch has no types here
            for place, parameter in enumerate(parameters)
            if parameter.requires_grad
        ]

    def rows(self, present: Sequence[bool]) -> torch.Tensor:
        """The newest digests, int64 (gradients, 3).

        Args:
            present: which parameters have a gradient; zeros where its hook did not run.
        """
        missing = torch.zeros(3, dtype=torch.int64)
        rows = [
            self._found.get(place, missing) for place, is_there in enumerate(present) if is_there
        ]
        return stack_rows(rows) if rows else torch.empty((0, 3), dtype=torch.int64)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _digest(self, place: int, parameter: torch.Tensor) -> None:
        # what is missing then is seen as a difference; here it would surface in backward()
        with contextlib.suppress(Exception):
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided:
                self._found[place] = digest_rows([gradient.detach()])[0]
