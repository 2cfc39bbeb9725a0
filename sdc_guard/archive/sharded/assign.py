"""Which rank writes what: each piece once, and where copies differ the lowest rank's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .pieces import At, Piece


@dataclass(frozen=True)
class Assignment:
    """What each rank writes.

    Attributes:
        places: by rank, of pieces in its plan.
        reasons: tensors whose copies differ, of which all but one are not saved.
        notes: those of them that may well be each rank's own.
    """

    places: dict[int, list[int]]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def assigned(plans: Mapping[int, Sequence[Piece]]) -> Assignment:
    """Share out the pieces that ranks hold, by rank.

    What several hold alike is written by whichever has least to write by then. Values, and
    tensors whose copies differ, are taken from the lowest rank that has them, so that what belongs
    together, as the statistics of a norm, comes from one.
    """
    holders: dict[At, list[tuple[int, int]]] = {}
    for rank, pieces in sorted(plans.items()):
        for place, piece in enumerate(pieces):
            holders.setdefault(piece.at, []).append((rank, place))
    places: dict[int, list[int]] = {rank: [] for rank in plans}
    load = dict.fromkeys(sorted(plans), 0)
    differ: dict[str, list[int]] = {}
    own: dict[str, list[int]] = {}
    # the largest first: what is left then evens it out
    for at in sorted(holders, key=lambda at: -_first(plans, holders[at]).bytes):
        copies = holders[at]
        first = _first(plans, copies)
        odd = [rank for rank, place in copies if not _alike(plans[rank][place], first)]
        if odd:
            (own if first.own else differ)[first.name] = [copies[0][0], *odd]
        if odd or first.is_value:
            rank, place = copies[0]
        else:
            rank, place = min(copies, key=lambda copy: load[copy[0]])
        places[rank].append(place)
        load[rank] += first.bytes
    for written in places.values():
        written.sort()
    return Assignment(
        places,
        tuple(_told(name, ranks) for name, ranks in differ.items()),
        tuple(_told(name, ranks) for name, ranks in own.items()),
    )


def _told(name: str, ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"{name} is not the same on ranks {listed}: saved is that of rank {ranks[0]}"


def _first(plans: Mapping[int, Sequence[Piece]], copies: list[tuple[int, int]]) -> Piece:
    rank, place = copies[0]
    return plans[rank][place]


def _alike(piece: Piece, other: Piece) -> bool:
    if (piece.dtype, piece.shape, piece.sizes) != (other.dtype, other.shape, other.sizes):
        return False
    one, two = piece.entry, other.entry
    return one is None or two is None or one.digest == two.digest
