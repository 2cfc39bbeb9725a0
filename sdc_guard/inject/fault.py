"""Which bit of which tensor: drawn from a seed, never from the training's generators."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Site = Literal["weight", "exp_avg", "exp_avg_sq"]
SITES: tuple[Site, ...] = get_args(Site)


@dataclass(frozen=True)
class Fault:
    """A bit flip at rest: between the end of step `step` − 1 and the forward pass of `step`.

    Attributes:
        site: "weight", or one of Adam's moments.
        step: the first step that meets the flipped bit.
        tensor: name of the layer, or None to draw one, by element: a tensor with twice the
            elements is drawn twice as often.
        index: element of the flattened tensor, or None to draw one.
        bit: position in the element, 0 the lowest, or None to draw one.
    """

    site: Site
    step: int
    tensor: str | None = None
    index: int | None = None
    bit: int | None = None


@dataclass(frozen=True)
class InjectionRecord:
    """What was done: the ground truth of an injection. Bits are unsigned numbers."""

    site: Site
    step: int
    rank: int
    seed: int
    tensor: str
    index: int
    bit: int
    before: int
    after: int


class Draw:
    """Numbers that depend on nothing but (seed, site, step, rank), by BLAKE2b."""

    def __init__(self, seed: int, site: str, step: int, rank: int) -> None:
        self._key = f"{seed}/{site}/{step}/{rank}"

    def below(self, limit: int, what: str) -> int:
        """A number in [0, limit), the same for the same key and `what`.

        The bias of the remainder is below limit/2⁶⁴.
        """
        content = f"{self._key}/{what}".encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") % limit

    def by_size(self, sizes: Sequence[int], what: str) -> int:
        """A place in `sizes`, each in proportion to its size."""
        drawn = self.below(sum(sizes), what)
        for place, size in enumerate(sizes):
            drawn -= size
            if drawn < 0:
                return place
        raise AssertionError("a number below the sum lies below one of the partial sums")
