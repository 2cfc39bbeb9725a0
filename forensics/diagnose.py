"""What a first difference means, and how much may be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .compare import StepDifference

Class = Literal[
    "state at rest",
    "batch",
    "activation",
    "gradient",
    "optimizer update",
    "resume",
    "undetermined",
    "unknown",
]

# Resuming restores all state or forgets a part of it (the moments are two thirds). A single
# event at rest hits few tensors. Between the two lies a wide gap; the middle is as good as any.
_SHARE_NOT_RESTORED = 0.5


@dataclass(frozen=True)
class Known:
    """How much of the state around a first difference was compared.

    Attributes:
        before: whether all of it, before the update of that step.
        left: whether all of it, after the step before that.
        carried: whether what differs before the update was compared after the step before that.
    """

    before: bool = True
    left: bool = True
    carried: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """A class of fault with the sentence that explains it.

    With the class "undetermined" the sentence names the classes between which the record does
    not decide.
    """

    kind: Class
    text: str


def classify(
    found: StepDifference, tensors: int, known: Known | None = None, world: int = 1
) -> Diagnosis:
    """Name what happened from what differs first, in the order in which a step runs.

    Args:
        found: the first difference.
        tensors: number of tensors that the state has.
        known: how much of the state was compared; all of it by default.
        world: number of ranks.
    """
    known = known or Known()
    if found.before:
        if len(found.before) > _SHARE_NOT_RESTORED * tensors:
            return Diagnosis("resume", f"{len(found.before)} of {tensors} tensors differ at once")
        names = ", ".join(f"{item.kind} {item.name}" for item in found.before[:3])
        text = f"{names} differed before the update of the step"
        if known.carried:
            return Diagnosis("state at rest", text)
        return _undetermined(f"{text}, and was not recorded after the step before", known)
    if found.lr:
        return Diagnosis("resume", "the learning rate was another one")
    if found.scale:
        return Diagnosis("resume", "the loss scale was another one")
    if found.batch:
        return Diagnosis("batch", _batch(found, world))
    if found.loss:
        if known.before:
            return Diagnosis("activation", "batch and state were equal, the loss was not")
        return _undetermined("the batch was equal, the loss was not", known, "activation")
    if found.gradients:
        text = _gradients(found)
        return (
            Diagnosis("gradient", text) if known.before else _undetermined(text, known, "gradient")
        )
    if found.skipped:
        text = "one of the two skipped the update, with equal loss and gradients"
        return Diagnosis("resume", text)
    if found.after:
        exactly = " bit for bit" if found.gradients_digested else ""
        text = f"the gradients at the end of the backward were equal{exactly}, "
        text = f"{text}{len(found.after)} tensors after the update were not"
        if known.before:
            return Diagnosis("optimizer update", text)
        return _undetermined(text, Known(left=False))
    return Diagnosis("unknown", "only the recorded rows differ")


def _batch(found: StepDifference, world: int) -> str:
    if world == 1 or not 0 < len(found.ranks) < world:
        return "the batch was another one"
    ranks = ", ".join(map(str, found.ranks))
    others = "the other's was" if world - len(found.ranks) == 1 else "the others' were"
    return (
        f"the batch of rank {ranks} was another one, {others} equal: the input differs, not the "
        "model"
    )


def _gradients(found: StepDifference) -> str:
    count = len(found.gradients)
    names = ", ".join(found.gradients[:3]) + (", ..." if count > 3 else "")
    what = (
        "the gradient of one layer was" if count == 1 else f"the gradients of {count} layers were"
    )
    return f"the loss was equal, {what} not: {names}"


def _undetermined(text: str, known: Known, *classes: Class) -> Diagnosis:
    """What the record leaves open: a tensor that it did not watch may have differed before."""
    earlier = ("state at rest",) if known.left else ("state at rest", "optimizer update")
    names = ", ".join((*earlier, *classes))
    return Diagnosis("undetermined", f"{text}; the state was recorded in part: one of {names}")


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
