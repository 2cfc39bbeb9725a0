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
        reasons: copies of a traced tensor that differ.
        notes: other tensors of one name that are each rank's own.
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
    traced: dict[str, list[int]] = {}
    own: dict[str, list[int]] = {}
    # the largest first: what is left then evens it out
    for at in sorted(holders, key=lambda at: -_first(plans, holders[at]).bytes):
        copies = holders[at]
        first = _first(plans, copies)
        odd = [rank for rank, place in copies if not _alike(plans[rank][place], first)]
        if odd:
            is_traced = first.entry is not None and first.entry.kind is not None
            (traced if is_traced else own)[first.name] = [copies[0][0], *odd]
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
        tuple(
            f"{name} is not the same on ranks {_listed(ranks)}" for name, ranks in traced.items()
        ),
        tuple(
            f"{name} is another one on ranks {_listed(ranks)}: saved is that of rank {ranks[0]}"
            for name, ranks in own.items()
        ),
    )


def _first(plans: Mapping[int, Sequence[Piece]], copies: list[tuple[int, int]]) -> Piece:
    rank, place = copies[0]
    return plans[rank][place]


def _alike(piece: Piece, other: Piece) -> bool:
    if (piece.dtype, piece.shape, piece.sizes) != (other.dtype, other.shape, other.sizes):
        return False
    one, two = piece.entry, other.entry
    return one is None or two is None or one.digest == two.digest


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
