"""The guard of a campaign's trainings, and the folder that it writes to."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..guard import Guard
from .training import Training

Sensor = Any  # the recorder's own; passed on whole


def attach(
    training: Training,
    run: Path,
    *,
    first_step: int,
    digests: bool,
    audited: bool = False,
    sensor: Sensor = None,
) -> Guard:
    """Attach a guard as a user would.

    Args:
        run: its folder.
        digests: whether it digests the whole state, buffers too, before and after each step.
        audited: whether it runs each step again before it is applied.
        sensor: what another guard's statistics had learned by this step; a copy is used.
    """
    guard = Guard(
        training.model,
        training.optimizer,
        run=run,
        first_step=first_step,
        policy="record",
        digest_budget=None if digests else 0,
        digest_buffers=digests,
        replicas_every=None,
        probe_every=None,
        audit=training.loss_fn if audited else None,
        audit_rate=1.0,
    )
    if sensor is not None:
        guard._recorder._sensor = copy.deepcopy(sensor)
    return guard


def learned(guard: Guard) -> Sensor:
    """A copy of what a guard's statistics have learned, once they have judged every step so far."""
    guard.flush()
    return copy.deepcopy(guard._recorder._sensor)


@contextmanager
def folder_in(root: Path) -> Iterator[Path]:
    """A new folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
