"""On which host and device each rank ran, as the rank itself recorded it at its start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..signals.reading import NOT_KNOWN
from .lineage import lineage
from .trace_reader import TraceReader

_STARTS: Final = """
    SELECT rank, arg_min(detail, step) FROM every.events
    WHERE attempt = $attempt AND kind IN ('start', 'restart') AND detail IS NOT NULL GROUP BY rank
"""
_SHOWN: Final = 8  # devices of one rank


@dataclass(frozen=True)
class Device:
    """A device: what it is called, and what it is known by wherever it is built in."""

    name: str
    uuid: str | None = None
    serial: str | None = None

    @property
    def text(self) -> str:
        """`cuda:0 (NVIDIA H200), GPU-6f2c..., serial 165`."""
        known = [self.name]
        if self.uuid:
            known.append(self.uuid)
        if self.serial:
            known.append(f"serial {self.serial}")
        return ", ".join(known)


@dataclass(frozen=True)
class Machine:
    """Where a rank ran.

    Attributes:
        rank, attempt: which, and in which start of the training.
        host: its name; None where it was not recorded.
        devices: that its model lay on; empty where that was not recorded.
    """

    rank: int
    attempt: int
    host: str | None
    devices: tuple[Device, ...] = ()

    @property
    def device(self) -> str | None:
        """Its devices in words; None where none is recorded."""
        return "; ".join(device.text for device in self.devices[:_SHOWN]) or None

    @property
    def text(self) -> str:
        """`host node-7, cuda:0 (NVIDIA H200), GPU-6f2c...`."""
        host = "host not recorded" if self.host is None else f"host {self.host}"
        return host if self.device is None else f"{host}, {self.device}"

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "devices": [asdict(device) for device in self.devices]}


def machines(reader: TraceReader, step: int | None = None) -> dict[int, Machine]:
    """Where each rank ran, by rank; ranks of which nothing is recorded are left out.

    Runs of before have the host of rank 0 alone, in run.json.

    Args:
        reader: of the run.
        step: in the attempt that counts for this step; None for the newest.
    """
    attempt = attempt_of(reader, step)
    if attempt is None:
        return {}
    found = {}
    for rank, text in reader.rows(_STARTS, {"attempt": attempt}):
        machine = _machine(rank, attempt, text)
        if machine.host is not None or machine.devices:
            found[rank] = machine
    host = _text(reader.run_file.environment(attempt).get("host"))
    if 0 not in found and host is not None:
        found[0] = Machine(0, attempt, host)
    return dict(sorted(found.items()))


def attempt_of(reader: TraceReader, step: int | None = None) -> int | None:
    """The attempt that counts for a step, the newest for None; None before the first."""
    spans = lineage(reader.run_file.attempts, reader.attempt)
    if step is None:
        return spans[-1][0] if spans else None
    return next((attempt for attempt, first, end in spans if first <= step < end), None)


def _machine(rank: int, attempt: int, text: str) -> Machine:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return Machine(rank, attempt, None)
    listed = content.get("devices")
    rows = listed if isinstance(listed, list) else []
    devices = [
        Device(name, _text(row.get("uuid")), _text(row.get("serial")))
        for row in rows
        if isinstance(row, dict) and (name := _text(row.get("name"))) is not None
    ]
    return Machine(rank, attempt, _text(content.get("host")), tuple(devices))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.startswith(NOT_KNOWN) else None
