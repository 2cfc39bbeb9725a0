"""Whether the ledger says to leave this device out, asked when a training starts."""

from __future__ import annotations

from pathlib import Path

import torch

from ...detect.strikes import standings
from ...errors import TrainingHalted
from ...ledger import read_ledger
from .subject import device_of, device_serial


def told_by_ledger(ledger: Path | None, model: torch.nn.Module, *, halt: bool) -> list[str]:
    """Lines to tell at the start; none where nothing is known against the model's device.

    Args:
        ledger: the file, or None.
        halt: whether the policy is to end the training.

    Raises:
        TrainingHalted: the device is out, and the policy is to halt.
        UsageError: the file cannot be read.
    """
    if ledger is None or not ledger.exists():
        return []
    entries, damaged = read_ledger(ledger)
    serial = device_serial(device_of(model))
    lines = [f"{damaged} damaged lines of {ledger} are passed over"] if damaged else []
    for standing in standings(entries):
        if standing.device != serial or not standing.out:
            continue
        what = f"{serial} has {standing.strikes} strikes in {standing.audits} audits"
        if halt:
            raise TrainingHalted(what, where=str(ledger), next_step=standing.advice)
        lines.append(f"{what}: {standing.advice} ({ledger})")
    return lines
