"""Logs as JSON: the Hugging Face Trainer's state, lists of rows, and one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import LogUnreadable
from .columns import Asked, choose
from .opening import lines_of, open_text, refuse_beyond
from .table import ROLES, LogTable, TableBuilder

_LARGEST: Final = 1 << 29  # of a document that is read as a whole, in bytes


def is_lines(head: bytes, coding: str) -> bool:
    """Whether a JSON file has an object on its first line, and more lines or only a row in it."""
    text = head.decode(coding, errors="replace").lstrip()
    first, _, rest = text.partition("\n")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "log_history" not in row and bool(rest.strip())


def read_lines(path: Path, coding: str, asked: Asked) -> LogTable:
    """Read one object a line, twice: for the columns, then for their numbers.

    Raises:
        LogUnreadable: nothing to judge is in it.
        UsageError: a column that was asked for is not there.
    """
    names: dict[str, None] = {}
    good, bad, cut = 0, 0, False
    for row in _line_rows(path, coding):
        cut = row is None
        good, bad = good + (row is not None), bad + (row is None)
        for name in row or ():
            names[name] = None
    if bad > good:
        raise LogUnreadable(f"{bad} of its {good + bad} lines are no JSON objects", where=str(path))
    notes = ["the last line is cut short: left out"] if cut else []
    if bad - cut:
        notes.append(f"{bad - cut} lines that are no JSON objects are left out")
    return _table("JSON lines", (row for row in _line_rows(path, coding) if row), names, asked,
                  path, notes)  # fmt: skip


def _line_rows(path: Path, coding: str) -> Iterator[dict[str, Any] | None]:
    with open_text(path, coding) as file:
        for line in lines_of(file, path):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield None
                continue
            yield flat(row) if isinstance(row, dict) else None


def read_document(path: Path, coding: str, asked: Asked) -> LogTable:
    """Read a trainer_state.json, or a list of rows.

    Raises:
        LogUnreadable: it is cut short, too large, or something else.
        UsageError: a column that was asked for is not there.
    """
    refuse_beyond(_LARGEST, path)
    with open_text(path, coding) as file:
        text = file.read()
    content = _parsed(path, text)
    if isinstance(content, dict):
        history = content.get("log_history")
        if not isinstance(history, list):
            raise LogUnreadable(
                "Not a Hugging Face trainer_state: log_history missing", where=str(path),
                next_step="give the log of a training",
            )  # fmt: skip
        return _history(path, history, asked)
    rows = [flat(row) for row in content if isinstance(row, dict)]
    names = dict.fromkeys(name for row in rows for name in row)
    if not rows:
        raise LogUnreadable("a JSON list without any row", where=str(path))
    return _table("JSON", rows, names, asked, path, [])


def _parsed(path: Path, text: str) -> Any:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise LogUnreadable(
                f"the JSON is cut short after {len(text):,} characters", where=str(path),
                next_step="copy it again, or take that of another checkpoint",
            ) from None  # fmt: skip
        raise LogUnreadable(
            f"no JSON: {error.msg} in line {error.lineno}", where=str(path)
        ) from None
    except RecursionError:
        raise LogUnreadable("JSON that is nested too deeply", where=str(path)) from None
    except ValueError as error:  # an integer of thousands of digits
        raise LogUnreadable(f"no JSON: {error}", where=str(path)) from None
    if not isinstance(content, (dict, list)):
        raise LogUnreadable("JSON that holds neither an object nor a list", where=str(path))
    return content


def _history(path: Path, history: list[Any], asked: Asked) -> LogTable:
    """The rows of training: those of evaluation have other names, the summary's loss is a mean."""
    rows = [row for row in history if isinstance(row, dict) and "train_runtime" not in row]
    if not rows:
        raise LogUnreadable(
            "a trainer_state without any row in log_history", where=str(path),
            next_step="did the training log yet?",
        )  # fmt: skip
    names = dict.fromkeys(name for row in rows for name in row)
    return _table("Hugging Face trainer_state", rows, names, asked, path, [])


def _table(
    kind: str,
    rows: Iterable[Mapping[str, Any]],
    names: Iterable[str],
    asked: Asked,
    path: Path,
    notes: list[str],
) -> LogTable:
    columns = choose(names, asked, str(path))
    roles = columns.as_dict()
    wanted = [roles[role] or "" for role in ROLES]
    builder = TableBuilder(kind, columns)
    for row in rows:
        run = row.get(columns.run or "")
        builder.add(run, row.get(columns.step or ""), [row.get(name) for name in wanted])
    return builder.done(str(path), notes)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Objects within a row as names with a slash: {"train": {"loss": 2}} is train/loss."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": cell for inner, cell in value.items()}
        else:
            found[name] = value
    return found
