"""Logs as tables of text: CSV, and its relatives with tabs, semicolons or bars."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import LogUnreadable
from .columns import Asked, choose, known
from .numbers import number
from .opening import open_text
from .table import ROLES, LogTable, TableBuilder

_NAMES: Final = {",": "CSV", "\t": "TSV", ";": "CSV with semicolons", "|": "CSV with bars"}


def read_delimited(path: Path, coding: str, asked: Asked) -> LogTable:
    """Read a table whose first line names its columns.

    Raises:
        LogUnreadable: there is no such line, nothing below it, or nothing to judge.
        UsageError: a column that was asked for is not there.
    """
    with open_text(path, coding) as file:
        first = next((line for line in file if line.strip()), "")
        sign = _delimiter(first)
        try:
            header = _header(path, first, sign)
            columns = choose(header, asked, str(path))
            index = {name: at for at, name in reversed(list(enumerate(header)))}
            roles = columns.as_dict()
            at = [index.get(roles[role] or "", -1) for role in ROLES]
            step, run = index.get(columns.step or "", -1), index.get(columns.run or "", -1)
            builder = TableBuilder(_NAMES.get(sign, "table"), columns)
            notes, rows = [], 0
            for row, cut in _rows(csv.reader(file, delimiter=sign, skipinitialspace=sign == " ")):
                if cut and len(row) < len(header):
                    notes.append("the last line is cut short: left out")
                    break
                if row == header:
                    notes.append("a line that repeats the names is left out")
                    continue
                rows += 1
                builder.add(_cell(row, run), _cell(row, step), [_cell(row, one) for one in at])
        except csv.Error as error:
            raise LogUnreadable(f"its lines cannot be read ({error})", where=str(path)) from None
    if not rows:
        raise LogUnreadable(
            "only a line of names, no rows", where=str(path), next_step="did the training log yet?"
        )
    return builder.done(list(dict.fromkeys(notes)))


def _rows(lines: Iterator[list[str]]) -> Iterator[tuple[list[str], bool]]:
    """Each row that is not empty, and whether it is the last one."""
    before: list[str] | None = None
    for row in lines:
        if any(row):
            if before is not None:
                yield before, False
            before = row
    if before is not None:
        yield before, True


def _cell(row: list[str], at: int) -> str | None:
    return row[at] if 0 <= at < len(row) else None


def _delimiter(line: str) -> str:
    sign = max(_NAMES, key=line.count)
    if line.count(sign):
        return sign
    words = line.split()
    return " " if len(words) > 1 and sum(map(known, words)) > 1 else ","


def _header(path: Path, line: str, sign: str) -> list[str]:
    names = [name.strip() for name in next(csv.reader([line], delimiter=sign), [])]
    if names:
        names[0] = names[0].lstrip("# ")
    if names and all(map(_is_number, names)):
        raise LogUnreadable(
            "its first line has numbers and no names", where=str(path),
            next_step="put a line of names above it, such as step,loss,grad_norm",
        )  # fmt: skip
    return names


def _is_number(text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True
