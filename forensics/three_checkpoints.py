"""What three checkpoints in a row say of where the middle one went wrong.

Two signatures. Of the intervals: a damaged file differs in few tensors from what its predecessor
leads to, and its successor was not made from it; state that went wrong within the run is in the
successor, too. This needs checkpoints that should be equal, as those of replays are. And of single
elements, for checkpoints of a training that moves: one that jumps and returns is a damaged file,
one that jumps and stays went wrong within the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sdc_guard.archive.nonfinite import nonfinite
from sdc_guard.errors import CheckpointUnreadable

from .aliases import same_names
from .content import Content, StoredTensor
from .diff_troubles import Trouble, odd_values
from .jumps import Jumps, jumps_of
from .repeating import read_alike
from .same_bits import same_bits
from .state_kinds import KINDS, PARAMETERS, kind_of

FEW: Final = 0.1  # of the tensors, at most: a fault and no training step

FILE_BAD: Final = "the middle file is damaged: what came after it was not made from it"
PROVEN_BAD: Final = "the middle file is damaged: its bytes do not fit their checksums"
ANOTHER_BAD: Final = (
    "no answer about B: {} does not fit its checksums, and is nothing to compare with"
)
WITHIN_THE_RUN: Final = "the state went wrong within the run: the checkpoint after it has it, too"
NOTHING: Final = "nothing that tells a damaged file from a training that goes on"
EQUAL: Final = "no difference: the three are equal, bit for bit"
EQUAL_SO_FAR: Final = "{} of {} tensors compared, equal, bit for bit; {} not compared"
NONE_IN_COMMON: Final = "0 tensors in common: nothing was compared"
NO_TENSORS: Final = "no tensors to compare"


@dataclass(frozen=True)
class ThreeWay:
    """What three checkpoints say.

    Attributes:
        shares: of the tensors of all three that differ, between A and B, B and C, A and C.
        jumps: by tensor, those first that matter most: parameters, then moments.
        meaning: in words.
        tensors: that all three have.
        shapes: of those that have jumps.
        apart: tensors that were not compared, with why.
        odd: what is not finite.
    """

    shares: tuple[float, float, float]
    jumps: Mapping[str, Jumps]
    meaning: str
    tensors: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    odd: tuple[Trouble, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        names = ("a_b", "b_c", "a_c")
        return {
            "differing": dict(zip(names, self.shares, strict=True)),
            "tensors": self.tensors,
            "jumps": {
                name: {
                    "returned": one.returned, "stayed": one.stayed, "first": one.first,
                    "values": list(one.values),
                }
                for name, one in self.jumps.items()
            },
            "not_compared": dict(self.apart),
            "meaning": self.meaning,
        }  # fmt: skip


def three_way(a: Content, b: Content, c: Content, damaged: Collection[str] = ()) -> ThreeWay:
    """Compare three checkpoints, of which the middle one is in question.

    Args:
        a, b, c: in their order.
        damaged: letters of those whose bytes do not fit their checksums: that proves more than
            any comparison.
    """
    a, b = same_names(a, b)
    b, c = same_names(b, c)
    differing = [0, 0, 0]
    jumps, shapes = {}, {}
    odd: list[Trouble] = []
    apart = _not_in_all(a, b, c)
    whole = 0
    for name in b.tensors:
        stored = [_stored(content, name) for content in (a, b, c)]
        if not all(stored):
            continue
        try:
            one, two, three = read_alike([tensor for tensor in stored if tensor is not None])
        except CheckpointUnreadable as error:
            apart[name] = error.what
            continue
        whole += 1
        pairs = ((one, two), (two, three), (one, three))
        for place, pair in enumerate(pairs):
            differing[place] += not same_bits(*pair)
        odd += odd_values("ABC", name, [nonfinite(tensor) for tensor in (one, two, three)])
        moment = kind_of(name, two.dtype) != PARAMETERS
        if (found := jumps_of(one, two, three, moment=moment)) is not None:
            jumps[name], shapes[name] = found, tuple(two.shape)
    most = max(1, whole)
    shares = (differing[0] / most, differing[1] / most, differing[2] / most)
    ordered = dict(sorted(jumps.items(), key=lambda item: KINDS.index(kind_of(item[0], None))))
    unseen = len(apart) + len({name for one in (a, b, c) for name in one.foreign})
    means = _by_bytes(damaged) or _beyond(whole, unseen) or meaning(shares, ordered.values())
    if means == EQUAL and unseen:
        means = EQUAL_SO_FAR.format(whole, whole + unseen, unseen)
    odd.sort(key=lambda trouble: trouble.of)
    return ThreeWay(shares, ordered, means, whole, shapes, apart, tuple(odd))


def _stored(content: Content, name: str) -> StoredTensor | None:
    return content.tensors.get(content.aliases.get(name, name))


def _not_in_all(*contents: Content) -> dict[str, str]:
    """Tensors that one or two of the three lack, or know by another name."""
    names = dict.fromkeys(name for content in contents for name in content.tensors)
    found = {}
    for name in names:
        held = [
            letter
            for letter, content in zip("ABC", contents, strict=True)
            if _stored(content, name) is not None
        ]
        if len(held) < 3:
            found[name] = f"only in {' and '.join(held)}"
    return found


def _by_bytes(damaged: Collection[str]) -> str | None:
    """What checksums say of the files, which no comparison can refute."""
    if "B" in damaged:
        return PROVEN_BAD
    others = " and ".join(sorted(damaged))
    return ANOTHER_BAD.format(others) if others else None


def _beyond(whole: int, unseen: int) -> str | None:
    """What there is to say of checkpoints of which no tensor was compared."""
    if whole:
        return None
    return NONE_IN_COMMON if unseen else NO_TENSORS


def meaning(shares: tuple[float, float, float], jumps: Iterable[Jumps]) -> str:
    """What the shares of differing tensors and the jumps say together.

    Args:
        shares: between A and B, B and C, A and C.
        jumps: of all tensors.
    """
    first, second, whole = shares
    if not any(shares):
        return EQUAL
    if first and second and not whole:
        return FILE_BAD
    if 0 < first <= FEW and not second:
        return WITHIN_THE_RUN
    found = list(jumps)
    returned, stayed = sum(one.returned for one in found), sum(one.stayed for one in found)
    if returned > stayed:
        return FILE_BAD
    return WITHIN_THE_RUN if stayed else NOTHING
