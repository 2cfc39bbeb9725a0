"""Names and files of a table's segments and seals.

trace/<table>/rank=00000/seg-<n>.parquet        published once, never changed
trace/<table>/rank=00000/seal-<a>-<b>.duckdb    segments a..b folded into one file
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# no longer numbers: one that is absurd would count as the newest
_SEGMENT = re.compile(r"seg-([0-9]{8,12})\.parquet")
_SEAL = re.compile(r"seal-([0-9]{8,12})-([0-9]{8,12})\.duckdb")
_RANK = re.compile(r"rank=([0-9]{5,7})")
_LISTINGS = 3  # of a folder whose numbers have a hole, before it is believed

Span = tuple[int, int]


@dataclass(frozen=True)
class Listing:
    """What one rank's folder of one table holds: number to file, (first, last) to file."""

    segments: dict[int, Path]
    seals: dict[Span, Path]

    def live(self) -> dict[Span, Path]:
        """What has to be read to see every row once: (first, last) to file, oldest first.

        That is the seals that no wider seal covers and the segments that no seal covers.
        """
        spans = {**{(n, n): path for n, path in self.segments.items()}, **self.seals}
        return {span: spans[span] for span in _widest(spans)}

    def live_segments(self) -> list[Path]:
        """Segments that no seal covers, oldest first."""
        return [path for path in self.live().values() if path.suffix == ".parquet"]

    def live_seals(self) -> list[Path]:
        """Seals that no wider seal covers, oldest first."""
        return [path for path in self.live().values() if path.suffix == ".duckdb"]

    def holes(self) -> list[Span]:
        """Numbers that were used, since later ones were, and that no file has."""
        return _holes([*((n, n) for n in self.segments), *self.seals])


def _widest(spans: Iterable[Span]) -> list[Span]:
    """Those that cover all numbers which the spans cover, each once, in order."""
    found, end = [], -1
    # of two that begin alike the wider comes first
    for first, last in sorted(spans, key=lambda span: (span[0], -span[1])):
        if last > end:
            found.append((first, last))
            end = last
    return found


def _holes(spans: Iterable[Span]) -> list[Span]:
    found, expected = [], 0
    for first, last in _widest(spans):
        if first > expected:
            found.append((expected, first - 1))
        expected = last + 1
    return found


def rank_folder(run: Path, table: str, rank: int) -> Path:
    """The folder that rank `rank`, and nobody else, writes table `table` to."""
    return run / "trace" / table / f"rank={rank:05d}"


def rank_of(path: Path) -> int:
    """The rank of a segment or seal, by its folder."""
    return int(path.parent.name.removeprefix("rank="))


def ranks(run: Path, table: str) -> list[int]:
    """Ranks that have a folder for `table`."""
    try:
        names = os.listdir(run / "trace" / table)  # noqa: PTH208 - because names alone are far cheaper than paths
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({int(match[1]) for match in map(_RANK.fullmatch, names) if match})


def segment_path(folder: Path, number: int) -> Path:
    """The file of segment `number`."""
    return folder / f"seg-{number:08d}.parquet"


def seal_path(folder: Path, first: int, last: int) -> Path:
    """The file of the seal over segments `first` to `last`."""
    return folder / f"seal-{first:08d}-{last:08d}.duckdb"


def listing(folder: Path) -> Listing:
    """List segments first and seals second.

    In this order a segment that is folded and deleted in between is still seen, in its seal;
    in the other order it would be in neither list. A hole in the numbers may come from a seal
    that took the place of narrower ones meanwhile, or from a listing that was cut short: the
    folder is listed again before a hole is believed.
    """
    segments, seals = _names(folder)
    return Listing(
        {number: folder / name for number, name in segments.items()},
        {span: folder / name for span, name in seals.items()},
    )


def seals_over(folder: Path, number: int) -> list[Path]:
    """The seals of a folder that cover a number; a hole is looked at again, as in `listing`."""
    for _ in range(_LISTINGS):
        names = _listed(folder)
        segments = _numbered(names, _SEGMENT)
        seals = _numbered(names, _SEAL)
        if not _holes([*((n, n) for (n,), _ in segments), *((a, b) for (a, b), _ in seals)]):
            break
    return [folder / name for (first, last), name in seals if first <= number <= last]


def next_number(folder: Path) -> int:
    """One after the last segment number ever used in a folder, sealed ones included."""
    newest = -1
    for pattern in (_SEGMENT, _SEAL):  # in this order, as in `listing`
        for name in os.listdir(folder):  # noqa: PTH208 - because names alone are far cheaper than paths
            match = pattern.fullmatch(name)
            if match and int(match.groups()[0]) <= int(match.groups()[-1]):
                newest = max(newest, int(match.groups()[-1]))
    return newest + 1


def quoted(path: Path) -> str:
    """The path as a SQL string for read_parquet, with what would be a pattern escaped."""
    literal = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))
    return text(literal)


def text(value: object) -> str:
    """A SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def _names(folder: Path) -> tuple[dict[int, str], dict[Span, str]]:
    """Segments and seals by their numbers; names alone, which are far cheaper than paths."""
    for _ in range(_LISTINGS):
        segments = {key[0]: name for key, name in _numbered(_listed(folder), _SEGMENT)}
        found = _numbered(_listed(folder), _SEAL)
        seals = {(key[0], key[1]): name for key, name in found if key[0] <= key[1]}
        if not _holes([*((number, number) for number in segments), *seals]):
            break
    return segments, seals


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - because names alone are far cheaper than paths
    except OSError:  # not there, or a link that leads to itself
        return []


def _numbered(names: list[str], pattern: re.Pattern[str]) -> list[tuple[tuple[int, ...], str]]:
    matches = ((pattern.fullmatch(name), name) for name in names)
    return [(tuple(int(part) for part in match.groups()), name) for match, name in matches if match]
