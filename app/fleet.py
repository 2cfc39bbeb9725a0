"""Which runs there are to show: those given, and those found in a folder that was given.

A page's address names a run by one of these names. It is looked up here and opens nothing else.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sdc_guard.errors import UsageError
from sdc_guard.lake.location import is_lake, parse

MAX_RUNS: Final = 500
MAX_FOLDERS: Final = 5_000  # looked into, of everything given
MAX_DEPTH: Final = 4  # of a run below the folder that was given


@dataclass(frozen=True)
class Run:
    """A run under the name that addresses have for it.

    Attributes:
        name: unique among the runs shown together.
        location: its folder, absolute, or its location in a lake; it need not exist yet.
        there: False for a folder in which no run was found yet.
    """

    name: str
    location: str
    there: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Fleet:
    """The runs to show, in the order given, those of a folder by name.

    Attributes:
        runs: at least one.
        refused: a line for each thing that is not shown, and why.
    """

    runs: tuple[Run, ...]
    refused: tuple[str, ...] = ()

    def named(self, name: str) -> Run | None:
        """The run of this very name: a name is compared, never taken for a path."""
        return next((run for run in self.runs if run.name == name), None)


def runs_given(arguments: Sequence[str]) -> Fleet:
    """The runs that the command line names, by folder, folder of runs or location in a lake.

    Raises:
        UsageError: none is named.
    """
    if not arguments:
        raise UsageError(
            "the dashboard shows runs",
            where="none given",
            next_step="streamlit run app/main.py -- RUN…",
        )
    found: list[Run] = []
    refused: list[str] = []
    for argument in dict.fromkeys(arguments):
        if is_lake(argument):
            lake, run = parse(argument)
            found.append(Run(run or str(lake), argument))
            continue
        folder = Path(argument).expanduser().absolute()
        inside = sorted(_inside(folder, refused), key=lambda run: run.name.split("/"))
        there = (folder / "run.json").exists()
        found += inside or [Run(folder.name or str(folder), str(folder), there)]
    by_location = {run.location: run for run in reversed(found)}
    runs = [run for run in dict.fromkeys(found) if by_location.get(run.location) is run]
    if len(runs) > MAX_RUNS:
        refused.append(f"{len(runs) - MAX_RUNS} more runs: the first {MAX_RUNS} are shown")
    return Fleet(_distinct(runs[:MAX_RUNS]), tuple(dict.fromkeys(refused)))


def _inside(top: Path, refused: list[str]) -> Iterator[Run]:
    """The runs in a folder that is none itself, none of them behind a link that leads out."""
    if (top / "run.json").exists():
        return
    looked_into = 0
    waiting = [(top, 0)]
    while waiting:
        folder, depth = waiting.pop()
        looked_into += 1
        if looked_into > MAX_FOLDERS:
            refused.append(f"{top}: more than {MAX_FOLDERS:,} folders; give a folder further down")
            return
        below = _folders(folder)
        for path, linked in below:
            if linked:
                if _leads_out(path, top) and (path / "run.json").exists():
                    refused.append(_refusal(path, path, top))
            elif (path / "run.json").is_symlink() or (path / "run.json").exists():
                yield from _checked(path, top, refused)
            elif depth + 1 < MAX_DEPTH:
                waiting.append((path, depth + 1))


def _folders(folder: Path) -> list[tuple[Path, bool]]:
    """The folders in one, by name, and whether each is a link; hidden ones left out."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (Path(entry.path), entry.is_symlink())
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir()
            ]
    except OSError:
        return []  # gone, or not ours to read
    return sorted(found)


def _checked(run: Path, top: Path, refused: list[str]) -> Iterator[Run]:
    parts = (run / "run.json", run / "bisect", run / "trace", *_entries(run / "trace"))
    leading = next((path for path in parts if path.is_symlink() and _leads_out(path, top)), None)
    if leading is None:
        yield Run(run.relative_to(top).as_posix(), str(run))
    else:
        refused.append(_refusal(run, leading, top))


def _entries(folder: Path) -> list[Path]:
    """A table's folders and those of its ranks."""
    return [*folder.glob("*"), *folder.glob("*/rank=*")]


def _leads_out(path: Path, top: Path) -> bool:
    try:
        return not path.resolve().is_relative_to(top.resolve())
    except (OSError, RuntimeError):
        return True  # a circle of links leads nowhere


def _refusal(run: Path, link: Path, top: Path) -> str:
    what = "it is a link" if link == run else f"its {link.relative_to(run)} is a link"
    return f"{run.relative_to(top)} is not shown: {what} that leads out of {top}; give it by itself"


def _distinct(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same runs with names that differ: as much of the path as it takes."""
    longer = list(runs)
    for parts in range(2, 6):
        often = Counter(run.name for run in longer)
        longer = [
            replace(run, name="/".join(run.location.split("/")[-parts:]))
            if often[run.name] > 1 and not is_lake(run.location)
            else run
            for run in longer
        ]
    seen: Counter[str] = Counter()
    distinct = []
    for run in longer:
        seen[run.name] += 1
        again = seen[run.name]
        distinct.append(run if again == 1 else replace(run, name=f"{run.name} ({again})"))
    return tuple(distinct)
