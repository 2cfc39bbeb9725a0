"""Names and files of a table's segments and seals.

trace/<table>/rank=00000/seg-<n>.parquet        published once, never changed
trace/<table>/rank=00000/seal-<a>-<b>.duckdb    segments a..b folded into one file
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_SEGMENT = re.compile(r"seg-(\d+)\.parquet")
_SEAL = re.compile(r"seal-(\d+)-(\d+)\.duckdb")
_RANK = re.compile(r"rank=(\d+)")


@dataclass(frozen=True)
class Listing:
    """What one rank's folder of one table holds: number to file, (first, last) to file."""

    segments: dict[int, Path]
    seals: dict[tuple[int, int], Path]

    def live_segments(self) -> list[Path]:
        """Segments that no seal covers, oldest first."""
        return [
            path
            for number, path in sorted(self.segments.items())
            if not any(first <= number <= last for first, last in self.seals)
        ]

    def live_seals(self) -> list[Path]:
        """Seals that no wider seal covers, oldest first."""
        return [
            path
            for (first, last), path in sorted(self.seals.items())
            if not any(a <= first and last <= b and (a, b) != (first, last) for a, b in self.seals)
        ]


def rank_folder(run: Path, table: str, rank: int) -> Path:
    """The folder that rank `rank`, and nobody else, writes table `table` to."""
    return run / "trace" / table / f"rank={rank:05d}"


def ranks(run: Path, table: str) -> list[int]:
    """Ranks that have a folder for `table`."""
    matches = (_RANK.fullmatch(path.name) for path in (run / "trace" / table).glob("rank=*"))
    return sorted({int(match[1]) for match in matches if match})


def segment_path(folder: Path, number: int) -> Path:
    """The file of segment `number`."""
    return folder / f"seg-{number:08d}.parquet"


def seal_path(folder: Path, first: int, last: int) -> Path:
    """The file of the seal over segments `first` to `last`."""
    return folder / f"seal-{first:08d}-{last:08d}.duckdb"


def listing(folder: Path) -> Listing:
    """List segments first and seals second.

    In this order a segment that is folded and deleted in between is still seen, in its seal;
    in the other order it would be in neither list.
    """
    segments = _numbered(folder, _SEGMENT)
    seals = _numbered(folder, _SEAL)
    return Listing(
        {key[0]: path for key, path in segments.items()},
        {(key[0], key[1]): path for key, path in seals.items()},
    )


def next_number(folder: Path) -> int:
    """One after the last segment number ever used in a folder, sealed ones included."""
    newest = -1
    for pattern in (_SEGMENT, _SEAL):  # in this order, as in `listing`
        for name in os.listdir(folder):  # noqa: PTH208 - because names alone are far cheaper than paths
            match = pattern.fullmatch(name)
            if match:
                newest = max(newest, int(match.groups()[-1]))
    return newest + 1


def quoted(path: Path) -> str:
    """The path as a SQL string for read_parquet, with what would be a pattern escaped."""
    literal = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))
    return "'" + literal.replace("'", "''") + "'"


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[tuple[int, ...], Path]:
    if not folder.is_dir():
        return {}
    found = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return {tuple(int(part) for part in match.groups()): path for match, path in found if match}
