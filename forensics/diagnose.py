"""What a first difference means, and how much may be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .compare import StepDifference

Class = Literal[
    "state at rest", "batch", "activation", "gradient", "optimizer update", "resume", "unknown"
]

# Resuming restores all state or forgets a part of it (the moments are two thirds). A single
# event at rest hits few tensors. Between the two lies a wide gap; the middle is as good as any.
_SHARE_NOT_RESTORED = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """A class of fault with the sentence that explains it."""

    kind: Class
    text: str


def classify(found: StepDifference, tensors: int) -> Diagnosis:
    """Name what happened from what differs first, in the order in which a step runs.

    Args:
        found: the first difference.
        tensors: number of tensors compared.
    """
    if found.before:
        if len(found.before) > _SHARE_NOT_RESTORED * tensors:
            return Diagnosis("resume", f"{len(found.before)} of {tensors} tensors differ at once")
        names = ", ".join(f"{item.kind} {item.name}" for item in found.before[:3])
        return Diagnosis("state at rest", f"{names} differed before the update of the step")
    if found.lr:
        return Diagnosis("resume", "the learning rate was another one")
    if found.batch:
        return Diagnosis("batch", "the batch was another one")
    if found.loss:
        return Diagnosis("activation", "batch and state were equal, the loss was not")
    if found.gradients:
        text = f"the loss was equal, the gradients of {len(found.gradients)} layers were not"
        return Diagnosis("gradient", text)
    if found.after:
        text = "the gradients at the end of the backward were equal, "
        text = f"{text}{len(found.after)} tensors after the update were not"
        return Diagnosis("optimizer update", text)
    return Diagnosis("unknown", "only the recorded rows differ")


def verdict(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    """The rung of the replay ladder that a difference with one replay reaches, and why.

    Two replays that agree with each other and not with the run show that the run's computation
    went another way once. On the same host that is an intermittent fault; on another it could
    as well be the first host's.

    Args:
        before, now: the environments of the run and of the replays.
    """
    if before.get("host") == now.get("host") and before.get("devices") == now.get("devices"):
        return "intermittent", "two replays on the same host agree, and the run differs from both"
    return (
        "undetermined",
        f"replayed on {now.get('host')}, the run was on {before.get('host')}: "
        "a replay on the run's own host would tell more",
    )


def environment_note(changed: dict[str, Any]) -> str:
    """What differs between two environments, in a line."""
    parts = [f"{name} {before!r} → {now!r}" for name, (before, now) in changed.items()]
    return "; ".join(parts) or "the recorded environments are equal"
