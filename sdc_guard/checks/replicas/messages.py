"""What ranks tell each other of their replicas, as bytes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...detect.replica_alerts import Report
from ...detect.replica_values import Compared
from ...detect.replicas import How, Part, Unit

_HOW: Final[tuple[How, ...]] = ("declared", "assumed", "input", "loss")
_SIZE: Final = 17
PASSED: Final = b"\0"  # instead of numbers: this rank has no time for this step


@dataclass(frozen=True)
class Record:
    """What a rank holds after a step.

    Attributes:
        step: its number.
        units: with the digests of their parts, int64 (len(parts), 3).
        passed: whether the digests were not taken.
    """

    step: int
    units: tuple[tuple[Unit, NDArray[np.int64]], ...]
    passed: bool = False


def folds_of(record: Record) -> bytes:
    """17 bytes a unit: its id, one 64-bit number of all its digests, and how it is held."""
    if record.passed:
        return PASSED
    return b"".join(
        bytes.fromhex(unit.id) + _fold(rows) + bytes([_HOW.index(unit.how)])
        for unit, rows in record.units
    )


def read_folds(content: bytes) -> dict[str, tuple[How, bytes]]:
    """By the unit's id: how it is held, and the number as bytes."""
    if content == PASSED:
        return {}
    return {
        content[at : at + 8].hex(): (_HOW[content[at + 16]], content[at + 8 : at + 16])
        for at in range(0, len(content), _SIZE)
    }


def rows_of(record: Record, wanted: set[str]) -> bytes | None:
    """The digests of each part of the wanted units; None if there is none of them."""
    told = {
        unit.id: {
            "how": unit.how,
            "parts": [list(asdict(part).values()) for part in unit.parts],
            "rows": rows.tobytes().hex(),
        }
        for unit, rows in record.units
        if unit.id in wanted
    }
    return zlib.compress(json.dumps(told).encode(), 1) if told else None


def read_rows(content: bytes) -> list[tuple[Unit, NDArray[np.int64]]]:
    """The units and their digests."""
    found = []
    for name, told in json.loads(zlib.decompress(content)).items():
        parts = tuple(Part(*values) for values in told["parts"])
        rows = np.frombuffer(bytes.fromhex(told["rows"]), np.int64).reshape(len(parts), 3)
        found.append((Unit(name, told["how"], parts), rows))
    return found


def report_text(report: Report) -> dict[str, Any]:
    """A report as JSON values."""
    return asdict(report)


def read_report(told: Mapping[str, Any]) -> Report:
    """The report of these JSON values."""
    values = told["values"]
    return Report(
        step=told["step"],
        state=told["state"],
        how=told["how"],
        ranks=tuple(told["ranks"]),
        odd=tuple(told["odd"]),
        parts=tuple(Part(**part) for part in told["parts"]),
        candidate=told["candidate"],
        values=None if values is None else Compared(**values),
        pair=(told["pair"][0], told["pair"][1]),
    )


def _fold(rows: NDArray[np.int64]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=8).digest()
