"""Replicas compared with each other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..ranks import Ranks
from ..signals.state import CarriedState
from .check import Check, Telling


class ReplicaCheck(Check):
    """Compares the digests of what several ranks hold alike."""

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        state: Callable[[], CarriedState],
        ranks: Ranks,
        every: int,
    ) -> None:
        self._telling, self._every = telling, every
