"""Which steps to replay, and from which checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdc_guard.errors import ArchiveIncomplete, UsageError

from .checkpoint import Checkpoint
from .journal import Session


@dataclass(frozen=True)
class Interval:
    """Replay from `start` up to step `until`.

    Attributes:
        earlier: the checkpoint before `start`.
        after: the checkpoints after `start`, each with the step of the next one, or the last one
            recorded, to replay up to.
    """

    start: Checkpoint
    until: int
    earlier: Checkpoint | None
    after: tuple[tuple[Checkpoint, int], ...] = ()


def newest_bracket(
    sessions: Sequence[Session], attempts: int, attempt: int | None
) -> dict[str, Any] | None:
    """The result of the newest `run`, if it found a bracket in the run as it is now.

    Args:
        sessions: of the run, oldest first.
        attempts: how often the run was started by now.
        attempt: the attempt that is looked at, None for the newest.
    """
    for session in reversed(sessions):
        result = session.result()
        if result is None or not str(result["schema"]["name"]).endswith(".run"):
            continue
        about_this = (result.get("attempts"), result.get("attempt")) == (attempts, attempt)
        return result if about_this and result["first_corrupt"] is not None else None
    return None


def from_bracket(
    candidates: Sequence[Checkpoint],
    last_clean: int | None,
    first_corrupt: int,
    recorded: int | None = None,
) -> Interval:
    """The interval between the two ends of a bracket; `recorded` is the last recorded step.

    Where of the clean end the weights alone were kept, it begins at the whole one before.

    Raises:
        ArchiveIncomplete: no clean checkpoint precedes the corruption.
    """
    if last_clean is None:
        raise ArchiveIncomplete(
            f"checkpoint {first_corrupt} is corrupt and no clean one is before it to replay from",
            next_step="the alerts of the run may name the step; see `sdc-bisect report`",
        )
    whole = [one.step for one in candidates if one.readable and one.resumable]
    before = [step for step in whole if step <= last_clean]
    start = last_clean if last_clean in whole or not before else before[-1]
    return asked(candidates, start, first_corrupt, recorded)


def asked(
    candidates: Sequence[Checkpoint], start: int, until: int | None, recorded: int | None = None
) -> Interval:
    """The interval from the checkpoint of step `start` to `until`.

    Args:
        candidates: by step.
        start: of one of them.
        until: by default the last checkpoint, or from that one on the last recorded step.
        recorded: that step, None if there is none.

    Raises:
        UsageError: no readable checkpoint of that step, or an empty interval.
        ArchiveIncomplete: a copy of its weights alone.
    """
    readable = [one for one in candidates if one.readable and one.resumable]
    chosen = [checkpoint for checkpoint in readable if checkpoint.step == start]
    if not chosen and any(one.step == start and one.readable for one in candidates):
        earlier = [one.step for one in readable if one.step < start]
        raise ArchiveIncomplete(
            f"of step {start} there are the weights alone, and nothing can be replayed from them",
            next_step=f"--from {earlier[-1]} replays from the whole checkpoint before it"
            if earlier
            else "no whole checkpoint is before it",
        )
    if not chosen:
        steps = ", ".join(str(checkpoint.step) for checkpoint in readable) or "none"
        raise UsageError(f"no checkpoint of step {start} to replay from; there is: {steps}")
    end = until if until is not None else readable[-1].step
    if until is None and end <= start and recorded is not None:
        end = recorded
    if end <= start:
        if until is None:
            raise UsageError(
                f"nothing is recorded after step {start} to compare a replay with",
                next_step="give --from the step of an earlier checkpoint",
            )
        raise UsageError(f"nothing to replay from step {start} to step {end}: swapped?")
    before = [checkpoint for checkpoint in readable if checkpoint.step < start]
    after = [checkpoint for checkpoint in readable if checkpoint.step > start]
    ends = [checkpoint.step for checkpoint in after[1:]] + ([recorded] if recorded else [])
    spans = [(one, last) for one, last in zip(after, ends, strict=False) if last > one.step]
    return Interval(chosen[-1], end, before[-1] if before else None, tuple(spans))
