"""From a path to the rows of its runs, whatever the format."""

from __future__ import annotations

from pathlib import Path

from ..errors import LogUnreadable, UsageError
from .columns import Asked
from .opening import beginning, encoding, is_event_file
from .table import LogTable


def read_log(path: Path, asked: Asked) -> list[LogTable]:
    """Read a log: a file, or a folder of event files or with a trainer_state.json.

    Args:
        path: where it is.
        asked: columns that the user named.

    Raises:
        LogUnreadable: it is no log, or damaged.
        UsageError: it is not there, or a column that was asked for is not in it.
    """
    if path.is_dir():
        return _of_folder(path, asked)
    if not path.is_file():
        raise UsageError(_no_file(path), where=str(path))
    head = beginning(path)
    if is_event_file(head):
        from .event_files import read_event_files

        return read_event_files(path, {"": [path]}, asked)
    coding = encoding(head)
    table = _of_text(path, head, coding, asked)
    if coding == "latin-1":
        table.notes.append("its text is no UTF-8: read as Latin-1")
    if not table.runs:
        raise LogUnreadable(
            "no row has a number for the loss or the gradient norm", where=str(path),
            next_step="name the columns by --loss COLUMN or --grad-norm COLUMN",
        )  # fmt: skip
    return [table]


def _no_file(path: Path) -> str:
    """Why a path is neither a file nor a folder."""
    if path.exists():
        return "a pipe or a device, which is not read"
    return "a link that leads nowhere" if path.is_symlink() else "no such file"


def _of_text(path: Path, head: bytes, coding: str, asked: Asked) -> LogTable:
    from . import json_rows
    from .delimited import read_delimited

    if head.strip() in (b"null", b"true", b"false") or head.strip().isdigit():
        raise LogUnreadable("one value and no log", where=str(path), next_step="give a log")
    if head.decode(coding, errors="replace").lstrip()[:1] not in ("{", "["):
        return read_delimited(path, coding, asked)
    if json_rows.is_lines(head, coding):
        return json_rows.read_lines(path, coding, asked)
    return json_rows.read_document(path, coding, asked)


def _of_folder(path: Path, asked: Asked) -> list[LogTable]:
    from .event_files import event_files, read_event_files

    if (path / "run.json").is_file():
        raise UsageError(
            "a run that a guard recorded, which has judged it already", where=str(path),
            next_step="sdc-guard watch --once shows its incidents",
        )  # fmt: skip
    state = path / "trainer_state.json"
    if state.is_file():
        return read_log(state, asked)
    files = event_files(path)
    if not files:
        raise LogUnreadable(
            "a folder without event files of TensorBoard and without a trainer_state.json",
            where=str(path), next_step="give the file of the log",
        )  # fmt: skip
    return read_event_files(path, files, asked)
