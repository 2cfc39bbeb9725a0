"""What of a run's folder is not in the lake yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..store.schema import TABLES
from ..store.segments import Listing, listing, rank_folder, ranks
from .spans import Spans

Stream = tuple[str, int]  # a table and a rank


@dataclass(frozen=True)
class Piece:
    """A file to upload.

    Attributes:
        table, rank: whose rows it holds.
        first, last: its segment numbers.
        kind: "segment"; "seal", none of which is in the lake; "rest", a seal some of whose
            segments are in the lake, and the others exist as files no more.
        path: the file.
        size: of the file, in bytes.
    """

    table: str
    rank: int
    first: int
    last: int
    kind: Literal["segment", "seal", "rest"]
    path: Path
    size: int

    @property
    def stream(self) -> Stream:
        """Table and rank."""
        return self.table, self.rank


def pending(
    run: Path,
    chosen: Collection[int] | None,
    known: Mapping[Stream, Spans],
    damaged: Collection[Path],
) -> list[Piece]:
    """The pieces to upload next, each number in one piece at most.

    Args:
        run: the run's folder.
        chosen: ranks to look at; None for all that are there.
        known: what is in the lake.
        damaged: files to leave out.
    """
    return [
        piece
        for table in TABLES
        for rank in ranks(run, table)
        if chosen is None or rank in chosen
        for piece in _of_stream(
            rank_folder(run, table, rank), (table, rank), known.get((table, rank), Spans()), damaged
        )
    ]


def _of_stream(
    folder: Path, stream: Stream, known: Spans, damaged: Collection[Path]
) -> Iterator[Piece]:
    found = listing(folder)
    segments = {n: path for n, path in found.segments.items() if path not in damaged}
    seals = {span: path for span, path in found.seals.items() if path not in damaged}
    live = set(Listing(segments, seals).live_seals())
    whole = []
    for (first, last), path in sorted(seals.items()):
        gaps = known.missing(first, last) if path in live else []
        if gaps == [(first, last)]:
            whole.append((first, last))
            yield from _piece(stream, first, last, "seal", path)
        # a segment has a checksum and is apart from the others: what is still there goes first
        elif gaps and not any(a <= n <= b for n in segments for a, b in gaps):
            yield from _piece(stream, first, last, "rest", path)
    sealed = Spans(whole)
    for number, path in sorted(segments.items()):
        if number not in known and number not in sealed:
            yield from _piece(stream, number, number, "segment", path)


def _piece(
    stream: Stream, first: int, last: int, kind: Literal["segment", "seal", "rest"], path: Path
) -> Iterator[Piece]:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return  # folded into a seal since it was listed: the next look finds it there
    yield Piece(*stream, first, last, kind, path, size)


def batches(pieces: list[Piece], most_pieces: int, most_bytes: int) -> Iterator[list[Piece]]:
    """The pieces in groups for one commit each, in their order."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and (len(group) >= most_pieces or size + piece.size > most_bytes):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.size
    if group:
        yield group
