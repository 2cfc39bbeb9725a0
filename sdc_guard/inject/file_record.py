"""FILE.injected.json: the ground truth of what was injected into a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import InjectionError
from ..plain_json import plain
from ..store.atomic import publish_text
from .fault import Fault, Touched

_SCHEMA: Final = {"name": "sdc-guard.injected-file", "version": 1}


@dataclass(frozen=True)
class FileInjection:
    """One injection into a file.

    Attributes:
        seed: of what the fault left open.
        fault: as it was asked for.
        tensor: name of the tensor in the file; None for the file's bytes.
        dtype: of its words.
        touched: the words that were written to, by their index in the tensor or the file.
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


def add_injection(path: Path, injection: FileInjection) -> None:
    """Add to the record of a file."""
    before = read_injections(path) if record_of(path).is_file() else []
    write_injections(path, [*before, injection])


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
    except (ValueError, TypeError, KeyError):
        raise InjectionError("the record of injections is damaged", where=str(record)) from None


def _injection(content: dict[str, Any]) -> FileInjection:
    fault: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content["fault"].items()
    }
    if isinstance(fault["value"], str):  # what JSON has no number for
        fault["value"] = float(fault["value"])
    words: dict[str, Any] = {
        name: tuple(Touched(**word) for word in content[name]) for name in ("touched", "bytes")
    }
    return FileInjection(**content | {"fault": Fault(**fault), **words})
