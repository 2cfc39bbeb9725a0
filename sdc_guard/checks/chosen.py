"""Which checks a guard makes, from what it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..ranks import Ranks
from ..signals.shadow import LossFunction, ShadowPass
from ..signals.state import CarriedState
from .check import Check, Telling
from .known_answer import KnownAnswer
from .replicas import ReplicaCheck
from .step_audit import StepAudit


def checks_of(
    telling: Telling,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    state: Callable[[], CarriedState],
    ranks: Ranks,
    run: Path,
    shadow: ShadowPass | None,
    *,
    replicas_every: int | None,
    audit: LossFunction | None,
    audit_rate: float,
    ledger: Path | None,
    probe_every: int | None,
) -> list[Check]:
    """The checks that a guard was asked for; see Guard for the arguments.

    Args:
        telling: takes what they find.
        state: gives what is carried from step to step as it is now.
        shadow: its pass, if there is one.
    """
    found: list[Check] = []
    if replicas_every is not None and ranks.world_size > 1:
        found.append(ReplicaCheck(telling, model, state, ranks, replicas_every, shadow))
    if audit is not None:
        found.append(StepAudit(telling, model, optimizers, ranks, audit, audit_rate, ledger))
    if probe_every is not None:
        found.append(KnownAnswer(telling, model, ranks, run, probe_every))
    return found
