"""Which indices along one dimension of a distributed tensor this rank holds.

They are runs of consecutive indices, each as (first, length), in the order in which the rank
holds them. A dimension of n indices cut into c parts has parts of ⌈n/c⌉, the last ones shorter or
empty: so do torch.chunk and DTensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ..digest import Span

Runs: TypeAlias = list[tuple[int, int]]


class Cut(NamedTuple):
    """A cut along the dimension, by one dimension of the mesh.

    Attributes:
        parts: ranks along that dimension of the mesh.
        number: of this rank among them.
        factor: parts in which the dimension lay already, for a `_StridedShard`; else 1.
    """

    parts: int
    number: int
    factor: int = 1


def held(size: int, cuts: Sequence[Cut], length: int) -> Runs | None:
    """The indices that this rank holds; None if that is not certain.

    DTensor cuts from the left of the mesh to the right, a strided cut as if those on its right
    had been done before. fully_shard does it after those of tensor parallelism, really: where it
    does not come out even, that may be another part, which its length then mostly tells.

    Args:
        size: of the dimension in the whole tensor.
        cuts: those along it, in the order of the mesh.
        length: of the dimension in this rank's part.
    """
    found = _from_left(size, cuts)
    order = _order(cuts)
    if order is None:
        return found if _length(found) == length else None
    other: Runs = [(0, size)]
    for place in order:
        other = _part(other, cuts[place].parts, cuts[place].number)
    candidates = [runs for runs in (found, _merged(other)) if _length(runs) == length]
    if not candidates or any(runs != candidates[0] for runs in candidates):
        return None
    return candidates[0]


def _from_left(size: int, cuts: Sequence[Cut]) -> Runs:
    runs: Runs = [(0, size)]
    for parts, number, factor in cuts:
        pieces = (_part(runs, factor, piece) for piece in range(factor))
        runs = [run for piece in pieces for run in _part(piece, parts, number)]
    return _merged(runs)


def _order(cuts: Sequence[Cut]) -> list[int] | None:
    """The cuts in the order in which they were made, as their factors tell it."""
    order: list[int] = []
    for place in reversed(range(len(cuts))):
        before = [math.prod(cuts[x].parts for x in order[:many]) for many in range(len(order) + 1)]
        if cuts[place].factor not in before:
            return None
        order.insert(before.index(cuts[place].factor), place)
    return order


def _part(runs: Runs, parts: int, number: int) -> Runs:
    """Part `number` of the indices that these runs have one after the other."""
    share = -(-_length(runs) // parts)
    begin, end, before, found = number * share, (number + 1) * share, 0, []
    for first, length in runs:
        start, stop = max(begin - before, 0), min(end - before, length)
        if start < stop:
            found.append((first + start, stop - start))
        before += length
    return found


def _length(runs: Runs) -> int:
    return sum(length for _, length in runs)


def _merged(runs: Runs) -> Runs:
    merged: Runs = []
    for first, length in runs:
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((first, length))
    return merged


def nested(runs: Runs) -> list[Span]:
    """Runs as few nested ones: those of one length, at equal distances, are one."""
    spans = [Span(first, (length,), (1,)) for first, length in runs]
    while len(joined := _joined(spans)) < len(spans):
        spans = joined
    return spans


def _joined(spans: list[Span]) -> list[Span]:
    groups: list[list[Span]] = []
    for span in spans:
        group = groups[-1] if groups else []
        if (
            group
            and group[0][1:] == span[1:]
            and (len(group) == 1 or span.first - group[-1].first == group[1].first - group[0].first)
        ):
            group.append(span)
        else:
            groups.append([span])
    return [
        group[0]
        if len(group) == 1
        else Span(
            group[0].first,
            (len(group), *group[0].sizes),
            (group[1].first - group[0].first, *group[0].strides),
        )
        for group in groups
    ]
