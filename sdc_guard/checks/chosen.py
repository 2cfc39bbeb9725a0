"""Which checks a guard makes, from what it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..ranks import Ranks
from ..signals.shadow import LossFunction, ShadowPass
from ..signals.state import CarriedState
from .answers.known_answer import KnownAnswer
from .audit.elsewhere import Places
from .audit.report import AuditReport
from .audit.step_audit import StepAudit
from .audit.subject import device_of, device_serial
from .check import Check, Telling
from .peers.check import PeerCheck
from .replicas.check import ReplicaCheck


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
    peers_every: int | None,
    false_incidents: float | None,
    audit: LossFunction | None,
    audit_rate: float,
    ledger: Path | None,
    probe_every: int | None,
    attempt: int,
    first_step: int,
    blocking: bool,
    scale: Callable[[], torch.Tensor | None],
) -> list[Check]:
    """The checks that a guard was asked for; see Guard for the arguments.

    Args:
        telling: takes what they find.
        state: gives what is carried from step to step as it is now.
        attempt: of the run.
        blocking: whether each step is judged before it is applied.
        scale: of the loss in the newest backward.
        shadow: its pass, if there is one.
    """
    found: list[Check] = []
    if replicas_every is not None and ranks.world_size > 1:
        found.append(ReplicaCheck(telling, model, state, ranks, replicas_every, shadow))
    if peers_every is not None and ranks.world_size > 1:
        found.append(PeerCheck(telling, lambda: state().names, ranks, peers_every, false_incidents))
    if audit is not None:
        device = device_serial(device_of(model))
        report = AuditReport(telling, ledger, device, run, ranks.rank)
        found.append(
            StepAudit(
                model, optimizers, audit, audit_rate, report,
                places=lambda subject: Places.of(subject, ranks, run, attempt),
                attempt=attempt, first_step=first_step, reduced=ranks.world_size > 1,
                always=blocking, scale=scale,
            )
        )  # fmt: skip
    if probe_every is not None:
        found.append(KnownAnswer(telling, model, ranks, run, probe_every))
    return found
