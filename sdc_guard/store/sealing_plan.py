"""Which files of a folder are folded into which seals: pure, from their contents.

A window is 1,000 steps, and that of a file is the window of its first recorded step. Three stages:

    segments of a window become a seal; windows with few rows share one
    seals of one window become one, once a later window has begun
    16 neighbours of a tier become one of the next tier, so that the files stay few

Only neighbours without a hole between them are folded, in the order of their numbers. Steps that
run backwards, as after a resume, begin another window; nothing else depends on their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from .contents import Part, joined, rows_in

WINDOW_STEPS = 1000
ROWS_PER_SEAL = 20_000_000
ROWS_WORTH_A_SEAL = 122_880  # a row group: less of a window is no quicker to read by itself
NEIGHBOURS = 16
SEGMENT = -1


@dataclass(frozen=True)
class Piece:
    """A file of the trace, or one that is to be made of several.

    Attributes:
        first, last: numbers of its segments.
        files: one, or those to be folded, oldest first.
        parts: its contents.
        tier: `SEGMENT`, or 0 for a seal of segments, and 1 more for each folding of neighbours.
        barrier: it cannot be folded, and nothing over it.
    """

    first: int
    last: int
    files: tuple[Path, ...]
    parts: tuple[Part, ...] = ()
    tier: int = SEGMENT
    barrier: bool = False

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return rows_in(self.parts)

    @property
    def window(self) -> int | None:
        """The window of its first recorded step; None without rows."""
        return self.parts[0].begins_at // WINDOW_STEPS if self.parts else None


def plan(
    pieces: Sequence[Piece], *, at_least: int = 2, rows_per_seal: int = ROWS_PER_SEAL
) -> list[Piece]:
    """The seals to be made of a folder's live files.

    Args:
        pieces: all live files, oldest first.
        at_least: as few unsealed segments at the end of a row of neighbours are left alone.
        rows_per_seal: a seal is not added to once it has more.
    """
    made: list[Piece] = []
    for run in _neighbours(pieces):
        folded = _fold_segments(run, at_least, rows_per_seal)
        folded = _fold_windows(folded, rows_per_seal)
        tier = 0
        while any(piece.tier >= tier for piece in folded):
            folded = _fold_tier(folded, tier, rows_per_seal)
            tier += 1
        existing = {piece.files for piece in run}
        made += [p for p in folded if p.tier != SEGMENT and _is_new(p, existing)]
    return made


def _is_new(piece: Piece, existing: set[tuple[Path, ...]]) -> bool:
    return piece.files not in existing or piece.files[0].suffix == ".parquet"


def _neighbours(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    run: list[Piece] = []
    for piece in pieces:
        if run and (piece.barrier or piece.first != run[-1].last + 1):
            yield run
            run = []
        if not piece.barrier:
            run.append(piece)
    if run:
        yield run


def _fold_segments(run: list[Piece], at_least: int, rows_per_seal: int) -> list[Piece]:
    found: list[Piece] = []
    for is_segment, items in groupby(run, key=lambda piece: piece.tier == SEGMENT):
        if not is_segment:
            found += items
            continue
        groups: list[list[Piece]] = [[]]
        for segment in items:
            if groups[-1] and _is_full(groups[-1], segment, rows_per_seal):
                groups.append([])
            groups[-1].append(segment)
        found += [_folded(group, 0) for group in groups[:-1]]
        found += groups[-1] if len(groups[-1]) < at_least else [_folded(groups[-1], 0)]
    return found


def _is_full(group: list[Piece], segment: Piece, rows_per_seal: int) -> bool:
    rows = sum(piece.rows for piece in group)
    if rows > rows_per_seal:
        return True
    return segment.window != group[-1].window and rows >= ROWS_WORTH_A_SEAL


def _fold_windows(run: list[Piece], rows_per_seal: int) -> list[Piece]:
    found: list[Piece] = []
    groups = [
        list(items) for _, items in groupby(run, key=lambda piece: (piece.tier, piece.window))
    ]
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        whole = following is not None and following[0].window != group[0].window
        small = sum(piece.rows for piece in group) <= rows_per_seal
        found += [_folded(group, 0)] if group[0].tier == 0 and whole and small else group
    return found


def _fold_tier(run: list[Piece], tier: int, rows_per_seal: int) -> list[Piece]:
    found: list[Piece] = []
    for is_tier, items in groupby(run, key=lambda piece: piece.tier == tier):
        if not is_tier:
            found += items
            continue
        chunk: list[Piece] = []
        for piece in items:
            full = bool(chunk) and sum(p.rows for p in chunk) + piece.rows > rows_per_seal
            if full or len(chunk) == NEIGHBOURS:
                found.append(_folded(chunk, tier + 1))
                chunk = []
            chunk.append(piece)
        found += [_folded(chunk, tier + 1)] if len(chunk) == NEIGHBOURS else chunk
    return found


def _folded(group: list[Piece], tier: int) -> Piece:
    if len(group) == 1:
        return replace(group[0], tier=max(tier, 0)) if group[0].tier == SEGMENT else group[0]
    return Piece(
        group[0].first,
        group[-1].last,
        tuple(file for piece in group for file in piece.files),
        tuple(joined(part for piece in group for part in piece.parts)),
        tier,
    )
