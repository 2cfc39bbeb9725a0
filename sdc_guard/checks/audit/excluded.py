"""What a training is told of its ledger when it starts: a device to leave out, a file it lacks."""

from __future__ import annotations

from pathlib import Path

import torch

from ...detect.strikes import standings
from ...errors import TrainingHalted
from ...ledger import Ledger, read_ledger
from .subject import device_of, device_serial


def told_by_ledger(ledger: Path | None, model: torch.nn.Module, *, halt: bool) -> list[str]:
    """Lines to tell at the start; none where nothing is known against the model's device.

    A ledger that is missing is made, empty: only that shows whether it can be written.

    Args:
        ledger: the file, or None.
        halt: whether the policy is to end the training.

    Raises:
        TrainingHalted: the device is out, and the policy is to halt.
        UsageError: the file cannot be read.
    """
    if ledger is None:
        return []
    lines = _not_kept(ledger)
    if not ledger.exists():
        return lines
    entries, damaged = read_ledger(ledger)
    serial = device_serial(device_of(model))
    lines += [f"{damaged} damaged lines of {ledger} are passed over"] if damaged else []
    for standing in standings(entries):
        if standing.device != serial or not standing.out:
            continue
        what = f"{serial} has {standing.counts}"
        if halt:
            raise TrainingHalted(what, where=str(ledger), next_step=standing.advice)
        lines.append(f"{what}: {standing.advice} ({ledger})")
    return lines


def _not_kept(ledger: Path) -> list[str]:
    if ledger.exists() and not ledger.is_file():
        return []  # refused when it is read
    try:
        Ledger(ledger).try_to_open()
    except OSError as error:
        why = error.strerror or type(error).__name__
        return [f"the ledger {ledger} cannot be written ({why}): strikes are not kept"]
    return []
