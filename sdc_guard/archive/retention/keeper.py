"""Keeping as many checkpoints as were asked for, in a process of its own, while the run goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_log = logging.getLogger("sdc_guard")

_NICENESS: Final = 10  # the training comes first
_PATIENCE: Final = 10.0  # seconds; whoever deletes needs no script that waits for it


class Keeper:
    """Starts `sdc-guard keep RUN --apply` after a save, one at a time.

    A process, because reading manifests takes the interpreter's lock from the training. What a
    process that is still at work does not see, the next one deletes.

    Args:
        run: the run's folder.
        count: checkpoints to keep.
        weights: how many more as copies of their weights alone; None for none.
    """

    def __init__(self, run: Path, count: int, weights: int | None = None) -> None:
        self._run = run
        self._asked = ["--count", str(count)]
        self._asked += [] if weights is None else ["--weights", str(weights)]
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def saved(self) -> None:
        """Told of each checkpoint that was saved; does not wait.

        Raises:
            OSError: the process cannot be started.
        """
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._tell_if_failed(self._process.returncode)
        command = ["keep", str(self._run), *self._asked, "--apply", "--json"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sdc_guard.cli", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def wait(self, timeout: float = _PATIENCE) -> None:
        """Wait for a process that is still at work; after `timeout` seconds it goes on alone."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._tell_if_failed(self._process.wait(timeout))

    def _tell_if_failed(self, code: int) -> None:
        if code and not self._told:
            self._told = True
            _log.warning(
                "SDC Guard: checkpoints are not deleted, `sdc-guard keep %s` ended with %d",
                self._run,
                code,
            )
