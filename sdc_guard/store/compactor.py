"""Sealing in a process of its own, while the run goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from .atomic import exclusive

SEGMENTS_BETWEEN = (
    256  # nine minutes at a flush every two seconds; readers slow down at a thousand files
)
_NICENESS = 10  # the training comes first
_PATIENCE = 60.0  # seconds; a disk that hangs must not keep the script from its end


def start_compaction(run: Path) -> subprocess.Popen[bytes] | None:
    """Start `sdc-guard compact RUN` beside this process, unless one is at work there.

    Anybody who reads a run may do so: a lock in the run's folder lets one process seal at a time,
    and another that was started at the same moment ends at once. It does not import torch.

    Args:
        run: the run's folder.

    Returns:
        the process; None if one is sealing, or there is no trace, or it may not be written to.

    Raises:
        OSError: the process cannot be started.
    """
    try:
        with exclusive(run / "trace" / ".sealing") as free:
            if not free:
                return None
    except OSError:
        return None
    process = subprocess.Popen(
        [sys.executable, "-m", "sdc_guard.cli", "compact", str(run)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    return process


class Compactor:
    """Starts `sdc-guard compact` now and then, one at a time.

    A process, because folding segments takes the interpreter's lock and a second core from the
    training.

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
        self._process = start_compaction(self._run)

    def wait(self, timeout: float = _PATIENCE) -> None:
        """Wait for a process that is still sealing; after `timeout` seconds it goes on alone."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
