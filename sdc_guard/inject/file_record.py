"""FILE.injected.json: the ground truth of what was injected into a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import InjectionError
from ..plain_json import plain
from ..store.atomic import publish_text
from .checked import check_fault
from .fault import Fault, Touched

# a document of any other shape shows as one of these
_DAMAGED: Final = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, InjectionError,
)  # fmt: skip
_SCHEMA: Final = {"name": "sdc-guard.injected-file", "version": 1}


@dataclass(frozen=True)
class FileInjection:
    """One injection into a file.

    Attributes:
        seed: of what the fault left open.
        fault: as it was asked for.
        tensor: name of the tensor in the file; None for the file's bytes.
        dtype: of its elements.
        touched: the elements that were written to, by their index in the tensor or the file.
        bytes: the bytes that changed, by their offset in the file.
    """

    seed: int
    fault: Fault
    tensor: str | None
    dtype: str
    touched: tuple[Touched, ...]
    bytes: tuple[Touched, ...]

    def as_object(self) -> dict[str, Any]:
        """As JSON."""
        content: dict[str, Any] = plain(asdict(self))
        return content


def record_of(path: Path) -> Path:
    """The record beside a file."""
    return path.with_name(path.name + ".injected.json")


def write_injections(path: Path, injections: list[FileInjection]) -> None:
    """Replace the record of a file; none removes it."""
    if not injections:
        record_of(path).unlink(missing_ok=True)
        return
    content: dict[str, Any] = {"schema": _SCHEMA, "file": path.name}
    content["injections"] = [injection.as_object() for injection in injections]
    publish_text(record_of(path), json.dumps(content, indent=1) + "\n")


def read_injections(path: Path) -> list[FileInjection]:
    """What was injected into a file, in order.

    Raises:
        InjectionError: there is no record, or it is damaged.
    """
    record = record_of(path)
    try:
        return [_injection(x) for x in json.loads(record.read_text("utf-8"))["injections"]]
    except FileNotFoundError:
        raise InjectionError(
            "there is no record of an injection into it",
            where=str(path),
            next_step=f"{record.name} beside it would be one",
        ) from None
    except OSError as error:
        raise InjectionError(
            f"the record of injections cannot be read: {error.strerror}", where=str(record)
        ) from None
    except _DAMAGED:
        raise InjectionError(
            "the record of injections is damaged", where=str(record), next_step="move it away"
        ) from None


def _injection(content: dict[str, Any]) -> FileInjection:
    fault: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content["fault"].items()
    }
    if isinstance(fault["value"], str):  # what JSON has no number for
        fault["value"] = float(fault["value"])
    told = Fault(**fault)
    check_fault(told)
    touched, places = (_words(content[name]) for name in ("touched", "bytes"))
    if any(max(byte.before, byte.after) > 255 or byte.index >= 2**63 for byte in places):
        raise ValueError("no byte of a file")
    return FileInjection(**content | {"fault": told, "touched": touched, "bytes": places})


def _words(listed: list[dict[str, Any]]) -> tuple[Touched, ...]:
    for word in listed:
        if not all(isinstance(x, int) and x >= 0 for x in word.values()):
            raise ValueError("no unsigned numbers")
    return tuple(Touched(**word) for word in listed)
