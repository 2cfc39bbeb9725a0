"""The user's own judge: a command per checkpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from subprocess import CompletedProcess
from typing import IO, Any, Final

from sdc_guard.errors import CommandFailed, UsageError

from ..checkpoint import Checkpoint
from ..locations import is_local
from ..remote.copied import on_this_machine
from .judgement import Judgement

SKIP: Final = 125
_PATIENCE: Final = 5.0  # seconds that a command has to end when it is asked to
_READ: Final = 1 << 20  # bytes of the end of what a command printed, where a traceback stands


class CommandOracle:
    """Runs a command: exit code 0 is clean, 1 corrupt, 125 cannot be tested.

    Any other code is a crash, and so is a Python traceback with code 1: that is not evidence. It
    is run once more then, for what passes by itself; a second crash stops the search, or is
    "cannot be tested" if crashes are to be skipped.

    Args:
        command: program and arguments; `{ckpt}` and `{step}` are filled in.
        skip_crashes: go on after a second crash.
        pass_urls: where a checkpoint is behind a URL `{ckpt}` is that; else a copy, for the time of
            the command.
        cost: seconds that one judging takes, about, if that is known.

    Raises:
        UsageError: the command does not name {ckpt}, so it would judge the same thing each time.
    """

    name = "command"
    proves = False
    persists = False
    concurrent = True

    def __init__(
        self,
        command: Sequence[str],
        *,
        skip_crashes: bool = False,
        cost: float | None = None,
        pass_urls: bool = False,
    ) -> None:
        if not any("{ckpt}" in part or "{step}" in part for part in command):
            raise UsageError(
                "the command names neither {ckpt} nor {step}",
                where=" ".join(command),
                next_step="sdc-bisect run RUN -- python check.py {ckpt}",
            )
        self._command = tuple(command)
        self._skip_crashes = skip_crashes
        self._copies = not pass_urls and any("{ckpt}" in part for part in command)
        self.cost = cost
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._sent = False  # to another process, which may be on another machine

    def __getstate__(self) -> dict[str, Any]:
        """On another machine nothing runs yet; a lock cannot be pickled."""
        return {**self.__dict__, "_running": set(), "_lock": None, "_sent": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Judge one checkpoint. What cannot be read is not shown to the command.

        Raises:
            CommandFailed: it could not be started, or its exit code has no meaning; or the
                checkpoint is not seen where this was sent to.
        """
        if not checkpoint.readable:
            return Judgement("untestable", "; ".join(checkpoint.reasons))
        if self._sent and is_local(checkpoint.path) and not checkpoint.path.exists():
            raise CommandFailed(
                f"the worker does not see the checkpoint of step {checkpoint.step}",
                where=f"{checkpoint.path} on {socket.gethostname()}",
                next_step="all workers must see the archive under the same path",
            )
        if not self._copies:
            return self._judged(checkpoint, str(checkpoint.path))
        try:
            with on_this_machine(checkpoint.path) as place:
                return self._judged(checkpoint, place)
        except OSError as error:  # gone by now, or not to be read
            return Judgement("untestable", f"it cannot be copied: {error.strerror or error}")

    def _judged(self, checkpoint: Checkpoint, place: str) -> Judgement:
        filled = [
            part.replace("{ckpt}", place).replace("{step}", str(checkpoint.step))
            for part in self._command
        ]
        for _ in range(2):
            done = self._run(filled)
            crashed = "Traceback (most recent call last)" in done.stderr
            if done.returncode == 0:
                return Judgement("clean", "the command says clean")
            if done.returncode == 1 and not crashed:  # Python ends with 1 when it crashes, too
                return Judgement("corrupt", "the command says corrupt")
            if done.returncode == SKIP:
                return Judgement("untestable", "the command cannot test it")
            if self._stopped:
                break
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        ended = "crashed" if crashed else f"ended with {done.returncode}"
        if self._skip_crashes:
            return Judgement("untestable", f"the command {ended} twice: {last[0]}")
        raise CommandFailed(
            f"the command {ended} on step {checkpoint.step}: {last[0]}",
            where=" ".join(filled),
            next_step="it was run twice; 0 is clean, 1 corrupt, 125 cannot be tested; anything "
            "else stops the search",
        )

    def stop(self) -> None:
        """End what runs now."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _run(self, filled: list[str]) -> CompletedProcess[str]:
        """Run it until it ends, whoever still holds what it prints to: files, and no pipes.

        What it leaves running in the background may keep these open for as long as it likes.
        """
        try:
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                code = self._ended(filled, out, err)
                return CompletedProcess(filled, code, _end_of(out), _end_of(err))
        except OSError as error:
            raise CommandFailed(
                f"what the command prints cannot be kept ({error.strerror})",
                where=tempfile.gettempdir(),
                next_step="$TMPDIR names another folder",
            ) from None

    def _ended(self, filled: list[str], out: IO[bytes], err: IO[bytes]) -> int:
        """The exit code."""
        try:
            process = subprocess.Popen(filled, stdout=out, stderr=err)
        except OSError as error:
            raise CommandFailed(
                f"the command cannot be started ({error.strerror})", where=filled[0]
            ) from None
        with self._lock:
            self._running.add(process)
            if self._stopped:
                process.terminate()
        try:
            return process.wait()
        except BaseException:  # Ctrl-C in this thread: nothing of ours goes on without us
            _end(process)
            raise
        finally:
            with self._lock:
                self._running.discard(process)


def _end_of(file: IO[bytes]) -> str:
    """The last of what was printed."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _READ, 0))
    return file.read(_READ).decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, so that it can end its own children, and end it if it does not."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
