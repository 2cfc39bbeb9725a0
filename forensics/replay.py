"""Running the training script's own resume again, with the guard recording into the session."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sdc_guard.errors import CommandFailed, UsageError
from sdc_guard.guard import RUN_VARIABLE
from sdc_guard.signals.capture import VARIABLE, CaptureRequest

from .checkpoint import Checkpoint


@dataclass(frozen=True)
class ResumeCommand:
    """How a training script is resumed.

    Args:
        parts: program and arguments; `{ckpt}` is the checkpoint, `{step}` the last step to run,
            `{run}` the folder for what the replay writes.

    Raises:
        UsageError: `{ckpt}` is missing.
    """

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any("{ckpt}" in part for part in self.parts):
            raise UsageError(
                "the resume command does not name {ckpt}",
                where=" ".join(self.parts),
                next_step="for example: python train.py --resume {ckpt} --until {step}",
            )

    @classmethod
    def parse(cls, text: str) -> ResumeCommand:
        """From one line, quoted as for a shell; no shell runs it."""
        return cls(tuple(shlex.split(text)))

    def fill(self, checkpoint: Path, until: int, run: Path) -> list[str]:
        """The command with its places filled in."""
        places = {"{ckpt}": str(checkpoint), "{step}": str(until), "{run}": str(run)}
        filled = []
        for part in self.parts:
            for place, value in places.items():
                part = part.replace(place, value)
            filled.append(part)
        return filled


def replay(
    command: ResumeCommand,
    checkpoint: Checkpoint,
    until: int,
    target: Path,
    capture: CaptureRequest | None = None,
) -> Path:
    """Replay the steps after `checkpoint` up to `until`.

    Args:
        command: the script's resume.
        checkpoint: where to start.
        until: the last step.
        target: folder for the replayed run; what an interrupted replay left there is removed.
        capture: tensors to keep on the way.

    Returns:
        `target`, with the replayed trace in it.

    Raises:
        CommandFailed: it cannot be started, fails, or records nothing.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    filled = command.fill(checkpoint.path.resolve(), until, target.resolve())
    environment = {**os.environ, RUN_VARIABLE: str(target.resolve())}
    environment.pop(VARIABLE, None)
    if capture is not None:
        environment[VARIABLE] = capture.to_variable()
    log = target / "output.log"
    try:
        with log.open("wb") as output:
            code = subprocess.run(
                filled, env=environment, stdout=output, stderr=output, check=False
            ).returncode
    except OSError as error:
        raise CommandFailed(
            f"the resume command cannot be started ({error.strerror})", where=filled[0]
        ) from None
    if code != 0:
        text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CommandFailed(
            f"the resume command ended with {code}: {text[-1] if text else 'no output'}",
            where=" ".join(filled),
            next_step=f"its output is in {log}",
        )
    if not (target / "run.json").is_file():
        raise CommandFailed(
            "the resume command ran, but no guard recorded it",
            where=" ".join(filled),
            next_step="the script must attach Guard(...) when it resumes, too",
        )
    return target
