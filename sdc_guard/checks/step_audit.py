"""Steps run again, and compared by their gradients' digests."""

from __future__ import annotations

from pathlib import Path

import torch

from ..ranks import Ranks
from ..signals.shadow import LossFunction
from .check import Check, Telling


class StepAudit(Check):
    """Runs forward and backward of some steps again."""

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        ranks: Ranks,
        loss_fn: LossFunction,
        rate: float,
        ledger: Path | None,
    ) -> None:
        self._telling = telling
