"""The command that replays steps of a run, as every hint prints it: it runs when pasted. Pure."""

from __future__ import annotations

import shlex

_TYPED = "-- COMMAND --resume {ckpt} --until {step}"


def replay_command(
    place: str, resume: str | None, start: int | None = None, until: int | None = None
) -> str:
    """`sdc-bisect verify` of a run.

    Args:
        place: of the run, as the user names it.
        resume: the resume command that the run recorded; without one the user types it.
        start: step of the checkpoint to begin at; None leaves it to `verify`.
        until: the last step; only with `start`.
    """
    parts = ["sdc-bisect verify", shlex.quote(place)]
    if resume:
        parts.append("--recorded")
    if start is not None:
        parts.append(f"--from {start}")
        if until is not None:
            parts.append(f"--to {until}")
    return " ".join(parts if resume else [*parts, _TYPED])
