"""Running the training script's own resume again, with the guard recording into the session."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import xxhash

from sdc_guard.errors import CommandFailed, UsageError
from sdc_guard.guard import RUN_VARIABLE
from sdc_guard.signals.capture import VARIABLE, CaptureRequest

from .checkpoint import Checkpoint
from .interrupted import Resumption, begin, finish, left_of

_LARGEST_SCRIPT: Final = 1 << 24  # bytes; what is larger is data, and told apart by size and time

# On Linux a replay ends with whoever asked for it, so that nobody writes where the next one goes
# on. SIGTERM, and not SIGKILL: a launcher of ranks has to end them.
_LAUNCH: Final = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == parent:
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class Replayer(Protocol):
    """Whoever can run steps again; `ResumeCommand` says what each of these does."""

    def inputs(self) -> dict[str, Any]: ...

    def replay(
        self,
        checkpoint: Checkpoint,
        until: int,
        target: Path,
        capture: CaptureRequest | None = None,
    ) -> Path: ...


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

    def inputs(self) -> dict[str, Any]:
        """What a replay depends on, as far as the command names it: its words, and its files."""
        files = {part: content for part in self.parts if (content := _content(part))}
        return {"command": list(self.parts), "files": files, "folder": str(Path.cwd())}

    def replay(
        self,
        checkpoint: Checkpoint,
        until: int,
        target: Path,
        capture: CaptureRequest | None = None,
    ) -> Path:
        """Replay the steps after `checkpoint` up to `until`.

        What an earlier replay with the same inputs left in `target` is used again: all of it if
        it ended, else from the newest sound checkpoint that it wrote itself.

        Args:
            checkpoint: where to start.
            until: the last step.
            target: folder for the replayed run.
            capture: tensors to keep on the way.

        Returns:
            `target`, with the replayed trace in it.

        Raises:
            CommandFailed: it cannot be started, fails, or records nothing.
        """
        inputs = {
            **self.inputs(),
            "checkpoint": [str(checkpoint.path.resolve()), checkpoint.step, _state(checkpoint)],
            "until": until,
            "capture": None if capture is None else capture.to_variable(),
        }
        left = left_of(target, inputs, checkpoint, until, capture)
        if left.whole:
            return target
        if left.resume is None:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
        begin(target, inputs)
        self._run(self.fill(_start(left, checkpoint), until, target.resolve()), target, capture)
        finish(target, inputs)
        return target

    def _run(self, filled: list[str], target: Path, capture: CaptureRequest | None) -> None:
        environment = {**os.environ, RUN_VARIABLE: str(target.resolve())}
        environment.pop(VARIABLE, None)
        if capture is not None:
            environment[VARIABLE] = capture.to_variable()
        if shutil.which(filled[0]) is None:
            raise CommandFailed(
                "the resume command cannot be started (no such program)", where=filled[0]
            )
        launched = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *filled]
        log = target / "output.log"
        with log.open("ab") as output:
            # what this process holds open to be inherited is the session's lock
            code = subprocess.run(
                launched, env=environment, stdout=output, stderr=output, check=False,
                close_fds=False,
            ).returncode  # fmt: skip
        if code != 0:
            text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise CommandFailed(
                f"the resume command ended with {code}: {text[-1] if text else 'no output'}",
                where=" ".join(filled),
                next_step=f"its output is in {log}",
            )


def recorded_by_guard(target: Path) -> Path:
    """The folder of a replay, if a guard recorded it.

    Raises:
        CommandFailed: none did.
    """
    if not (target / "run.json").is_file():
        raise CommandFailed(
            "the resume command ran, but no guard recorded it",
            where=str(target),
            next_step="the script must attach Guard(...) when it resumes, too; or give "
            "--losses LOG, the log of the losses",
        )
    return target


def given_command(command: tuple[str, ...], recorded: bool, known: str | None) -> ResumeCommand:
    """The command to resume by: the one typed, or the one in run.json if that is asked for.

    Raises:
        UsageError: neither, both, or one without {ckpt}.
    """
    if command and recorded:
        raise UsageError("give either --recorded or a command after --, not both")
    if command:
        return ResumeCommand(command)
    if recorded and known:
        return ResumeCommand.parse(known)
    hint = "this run recorded none" if not known else f"--recorded runs what it recorded: {known}"
    raise UsageError(
        "how is the training resumed?",
        next_step=f"sdc-bisect verify RUN -- python train.py --resume {{ckpt}} ...; {hint}",
    )


def _start(left: Resumption, checkpoint: Checkpoint) -> Path:
    return (checkpoint.path if left.resume is None else left.resume).resolve()


def _content(part: str) -> str | None:
    """A hash of the file that a word of the command names; None if it names none."""
    try:
        path = Path(part)
        if not path.is_file():
            return None
        if path.stat().st_size > _LARGEST_SCRIPT:
            return _stamp(path)
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except (OSError, ValueError):  # longer than a name can be, or not readable
        return None


def _stamp(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size}/{found.st_mtime_ns}"


def _state(checkpoint: Checkpoint) -> list[str]:
    """Size and time of a checkpoint's files."""
    path = checkpoint.path
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [f"{file.name} {_stamp(file)}" for file in files]
