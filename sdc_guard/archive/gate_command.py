"""A user's own command as the judge of checkpoints: its exit code, or the loss that it prints."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..errors import UsageError
from .confirmations import Confirmation, add_confirmation
from .convictions import Conviction, add_conviction
from .gate import Examined

_SKIP: Final = 125
_TRACEBACK: Final = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Answer:
    """What a command said of a checkpoint.

    Attributes:
        sound: True or False; None where it says neither.
        text: what it said, in a line.
        failed: whether it broke down, which is no evidence.
    """

    sound: bool | None
    text: str
    failed: bool = False


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that judges the same thing each time.

    Raises:
        UsageError: it names neither {ckpt} nor {step}.
    """
    if not any("{ckpt}" in part or "{step}" in part for part in command):
        raise UsageError(
            "the command names neither {ckpt} nor {step}",
            where=" ".join(command),
            next_step="sdc-guard verify-archive RUN -- python eval.py {ckpt}",
        )


def ask(command: Sequence[str], one: Examined, recorded: float | None) -> Answer:
    """Run the command for a checkpoint.

    Exit code 0 is sound, 1 is not, 125 cannot be tested; any other is a crash, and so is 1 with a
    Python traceback. A last line of output that is a number, or a JSON object with "loss", is the
    loss: not sound if it is not finite; where the trace has the loss of a fixed batch after this
    very step, it is told whether the two are equal bit for bit.

    Args:
        command: program and arguments; `{ckpt}` and `{step}` are filled in.
        one: the checkpoint.
        recorded: the shadow loss of its step in the trace, if there is one.

    Raises:
        UsageError: the command cannot be started.
    """
    filled = [
        part.replace("{ckpt}", str(one.path)).replace("{step}", str(one.step)) for part in command
    ]
    try:
        done = subprocess.run(
            filled, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"the command cannot be started ({error.strerror})", where=filled[0]
        ) from None
    if done.returncode == _SKIP:
        return Answer(None, "the command cannot test it")
    if done.returncode == 1 and _TRACEBACK not in done.stderr:
        return Answer(False, "the command says that it is not sound")
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        return Answer(None, f"the command ended with {done.returncode}: {last[0]}", failed=True)
    return _of_loss(loss_in(done.stdout), recorded)


def _of_loss(loss: float | None, recorded: float | None) -> Answer:
    if loss is None:
        return Answer(True, "the command says that it is sound")
    if not math.isfinite(loss):
        return Answer(False, f"the command's loss is {loss}")
    if recorded is None:
        return Answer(True, f"the command's loss is {loss!r}")
    if loss == recorded:
        return Answer(True, f"the command's loss is {loss!r}, the shadow loss of the training")
    return Answer(
        True,
        f"the command's loss is {loss!r}; the shadow loss of the training was {recorded!r}, which "
        "another batch, device or number of threads explains as well",
    )


def loss_in(output: str) -> float | None:
    """The loss that a command printed last; None if its last line is none."""
    line = (output.strip().splitlines() or [""])[-1].strip()
    try:
        return float(line)
    except ValueError:
        pass
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    loss = content.get("loss") if isinstance(content, dict) else None
    return float(loss) if isinstance(loss, int | float) and not isinstance(loss, bool) else None


def with_answer(run: Path, one: Examined, answer: Answer, note: Callable[[str], None]) -> Examined:
    """The checkpoint with what the command said of it, which is kept in the run, too.

    What the run's folder refuses to keep is told, and counts all the same.
    """
    archive = run / "archive"
    try:
        if answer.sound is False:
            conviction = Conviction(one.attempt, None, max(one.step, 0), answer.text, one.name)
            add_conviction(archive, conviction)
        elif answer.sound:
            add_confirmation(
                archive,
                Confirmation(one.name, one.step, one.attempt, "command", answer.text, time.time()),
            )
    except OSError as error:
        note(f"what the command said of step {one.step} is not kept: {error.strerror}")
    if answer.failed:
        return replace(one, status="incomplete", reasons=(*one.reasons, answer.text))
    if answer.sound is False:
        return replace(one, status="suspect", reasons=(*one.reasons, answer.text))
    return replace(one, told=answer.text)
