"""Sealing in a process of its own, while the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SEGMENTS_BETWEEN = 256  # four minutes at a flush a second; readers slow down at a thousand files


class Compactor:
    """Starts `sdc-guard compact` now and then, one at a time.

    A process, because folding segments takes the interpreter's lock and a second core from the
    training; it does not import torch.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None

    def segment_published(self, number: int) -> None:
        """Told of each segment of the table "steps"; starts a process when enough are waiting.

        Raises:
            OSError: the process cannot be started.
        """
        if number % SEGMENTS_BETWEEN != SEGMENTS_BETWEEN - 1:
            return
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sdc_guard.cli", "compact", str(self._run)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Wait for a process that is still sealing."""
        if self._process is not None:
            self._process.wait()
