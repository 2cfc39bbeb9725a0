"""Logs as tables of text: CSV, and its relatives with tabs, semicolons or bars."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..errors import LogUnreadable
from .columns import Asked, Columns, choose, known
from .numbers import number
from .opening import lines_of, open_text
from .table import ROLES, LogTable, TableBuilder

_NAMES: Final = {",": "CSV", "\t": "TSV", ";": "CSV with semicolons", "|": "CSV with bars"}


def read_delimited(path: Path, coding: str, asked: Asked) -> LogTable:
    """Read a table whose first line names its columns.

    Raises:
        LogUnreadable: there is no such line, nothing below it, or nothing to judge; a quotation
            mark that is not closed takes rows in.
        UsageError: a column that was asked for is not there.
    """
    with open_text(path, coding) as file:
        lines = lines_of(file, path)
        first = next((line for line in lines if line.strip()), "")
        sign = _delimiter(first)
        try:
            header = _header(path, first, sign)
            columns = choose(header, asked, str(path))
            index = {name: at for at, name in reversed(list(enumerate(header)))}
            roles = columns.as_dict()
            at = [index.get(roles[role] or "", -1) for role in ROLES]
            step, run = index.get(columns.step or "", -1), index.get(columns.run or "", -1)
            builder = TableBuilder(_NAMES.get(sign, "table"), columns, decimal_comma=sign != ",")
            notes, rows = list(_read_once(header, columns)), 0
            for row, cut in _rows(csv.reader(lines, delimiter=sign, skipinitialspace=sign == " ")):
                _refuse_taken_in(row, len(header), sign, step, at[:2], path)
                if cut and len(row) < len(header):
                    notes.append("the last line is cut short: left out")
                    break
                if row == header:
                    notes.append("a line that repeats the names is left out")
                    continue
                rows += 1
                builder.add(_cell(row, run), _cell(row, step), [_cell(row, one) for one in at])
        except csv.Error as error:
            raise LogUnreadable(
                f"its lines cannot be read ({error})", where=str(path),
                next_step="is a quotation mark in it not closed?",
            ) from None  # fmt: skip
    if not rows:
        raise LogUnreadable(
            "only a line of names, no rows", where=str(path), next_step="did the training log yet?"
        )
    return builder.done(str(path), list(dict.fromkeys(notes)))


def _read_once(header: list[str], columns: Columns) -> Iterator[str]:
    for name in filter(None, columns.as_dict().values()):
        if header.count(name) > 1:
            yield f"{header.count(name)} columns have the name {name}: the first is read"


def _refuse_taken_in(
    row: list[str], width: int, sign: str, step: int, judged: Sequence[int], path: Path
) -> None:
    """Refuse a cell of several lines among which there is a row: no text, but an open quotation."""
    text = "".join(row)
    if "\n" not in text and "\r" not in text:
        return
    for cell in row:
        for line in cell.splitlines()[1:]:
            inner = next(csv.reader([line], delimiter=sign), [])
            if len(inner) < width or (step >= 0 and not _is_number(inner[step])):
                continue
            if any(at >= 0 and _is_number(inner[at]) for at in judged):
                raise LogUnreadable(
                    f"a quotation mark that is not closed takes in rows, as {line[:40]!r}",
                    where=str(path), next_step="close it, or take it away",
                )  # fmt: skip


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
        return number(text) is not None
    except ValueError:
        return False
