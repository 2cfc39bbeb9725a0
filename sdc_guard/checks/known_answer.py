"""A small computation whose answer is known."""

from __future__ import annotations

from pathlib import Path

import torch

from ..ranks import Ranks
from .check import Check, Telling


class KnownAnswer(Check):
    """Computes it at a cadence and compares."""

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        ranks: Ranks,
        run: Path,
        every: int,
    ) -> None:
        self._telling, self._every = telling, every
