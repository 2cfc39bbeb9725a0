"""The user's own judge: a command per checkpoint."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from sdc_guard.errors import CommandFailed, UsageError

from ..checkpoint import Checkpoint
from .judgement import Judgement

SKIP = 125


class CommandOracle:
    """Runs a command: exit code 0 is clean, 1 corrupt, 125 cannot be tested.

    Any other code stops the search, and so does a Python traceback with code 1: a script that
    crashes is not evidence.

    Args:
        command: program and arguments; `{ckpt}` and `{step}` are filled in.

    Raises:
        UsageError: the command does not name {ckpt}, so it would judge the same thing each time.
    """

    name = "command"
    proves = False

    def __init__(self, command: Sequence[str]) -> None:
        if not any("{ckpt}" in part or "{step}" in part for part in command):
            raise UsageError(
                "the command names neither {ckpt} nor {step}",
                where=" ".join(command),
                next_step="sdc-bisect run RUN -- python check.py {ckpt}",
            )
        self._command = command

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Judge one checkpoint.

        Raises:
            CommandFailed: it could not be started, or its exit code has no meaning.
        """
        filled = [
            part.replace("{ckpt}", str(checkpoint.path)).replace("{step}", str(checkpoint.step))
            for part in self._command
        ]
        try:
            done = subprocess.run(filled, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CommandFailed(
                f"the command cannot be started ({error.strerror})", where=filled[0]
            ) from None
        if done.returncode == 0:
            return Judgement("clean", "the command says clean")
        crashed = "Traceback (most recent call last)" in done.stderr
        if done.returncode == 1 and not crashed:  # Python ends with 1 when it crashes, too
            return Judgement("corrupt", "the command says corrupt")
        if done.returncode == SKIP:
            return Judgement("untestable", "the command cannot test it")
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        ended = "crashed" if crashed else f"ended with {done.returncode}"
        raise CommandFailed(
            f"the command {ended} on step {checkpoint.step}: {last[0]}",
            where=" ".join(filled),
            next_step="0 is clean, 1 corrupt, 125 cannot be tested; anything else stops the search",
        )
