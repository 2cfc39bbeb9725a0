"""What can be injected where, and what is recorded of it; drawn from a seed, never from torch's.

A fault is one operation on the bits of some elements, ((old AND a) OR o) XOR x: flipping, sticking
at 0 or 1, zeroing and setting are that. Multiplying by a power of two is the one besides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Site = Literal[
    "weight",
    "buffer",
    "exp_avg",
    "exp_avg_sq",
    "step",
    "gradient",
    "reduced_gradient",
    "activation",
    "output_gradient",
    "collective",
    "batch",
    "file",
]
SITES: tuple[Site, ...] = get_args(Site)

Change = Literal["flip", "stuck_at_0", "stuck_at_1", "zero", "set", "scale"]
CHANGES: tuple[Change, ...] = get_args(Change)

Pattern = Literal["element", "row", "column", "tile", "lane"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

Recurrence = Literal["once", "intermittent", "persistent"]
RECURRENCES: tuple[Recurrence, ...] = get_args(Recurrence)

Sampling = Literal["element", "layer"]
Effect = Literal["compute", "memory"]


@dataclass(frozen=True)
class Fault:
    """What is done to which elements of which tensor, and when.

    Whatever is left open is drawn from (seed, site, step, rank).

    Attributes:
        site: "weight", "buffer", one of Adam's moments and its "step" counter: at rest, between
            the end of step `step` − 1 and the forward pass of `step`. "gradient": of a parameter,
            before a reduction over ranks; "reduced_gradient": after it, before the optimizer
            reads it. "activation": the output of a module; "output_gradient": the gradient of
            it. "collective": what an all-reduce of gradients gave this rank. "batch": what the
            training's forward is called with. "file": bytes of a checkpoint's file.
        step: the first step that meets it.
        tensor: name, or pattern as of fnmatch, of the parameter, buffer or module; None for any.
        index: the first element, flattened row by row or by shape; a byte, of a file.
        bit: one bit of it, 0 the lowest; short for `bits` of one. Those of a complex element are
            its real half's and, from there on, its imaginary half's.
        bits: several bits of the same element.
        change: "flip", "stuck_at_0", "stuck_at_1" of those bits; "zero" or "set" (to `value`) the
            element; "scale" it by 2**`exponent`.
        value: of "set"; a complex element gets it as its real half, and 0 as the other.
        exponent: of "scale".
        pattern: "element" alone; its "row" or "column" of the last two dimensions; a "tile" of
            `height` × `width`; a "lane": every `period`-th element, `width` of them each time,
            of the flattened tensor from the element on.
        height, width, period: see `pattern`.
        recurrence: "once" at `step`; "intermittent": from `step` on, each step with `probability`;
            "persistent": at each step from `step` on.
        until: the last step of one that recurs; None for no end.
        probability: see `recurrence`.
        sampling: what an open `tensor` is drawn by: "element", a tensor with twice the elements
            twice as often, or "layer", each as often.
        effect: of "activation", "output_gradient" and "batch": "compute", the result of the
            operation is wrong, and what it was computed from is sound; "memory", the result is
            overwritten where it lies, and whatever shares its memory sees it.
        rank: at which it fires; None for every rank.
    """

    site: Site
    step: int
    tensor: str | None = None
    index: int | tuple[int, ...] | None = None
    bit: int | None = None
    bits: tuple[int, ...] | None = None
    change: Change = "flip"
    value: float | None = None
    exponent: int | None = None
    pattern: Pattern = "element"
    height: int = 1
    width: int = 1
    period: int = 32
    recurrence: Recurrence = "once"
    until: int | None = None
    probability: float = 1.0
    sampling: Sampling = "element"
    effect: Effect = "compute"
    rank: int | None = None


@dataclass(frozen=True)
class Touched:
    """One element that a fault wrote to. Bits are unsigned numbers; see Fault.bit."""

    index: int
    before: int
    after: int

    @property
    def bits(self) -> list[int]:
        """Positions at which it changed, 0 the lowest."""
        changed = self.before ^ self.after
        return [bit for bit in range(changed.bit_length()) if changed >> bit & 1]


@dataclass(frozen=True)
class InjectionRecord:
    """What was done at one step: the ground truth of an injection.

    Attributes:
        fault: number of the fault in its plan, from 0.
        site, step, rank, seed: of the fault.
        tensor: name of what was hit.
        touched: every element that was written to, in the order of the indices.
        backend: "eager" or "compiled": the same fault may do another thing in each.
        note: what was done besides what was asked for; empty for nothing.
    """

    fault: int
    site: Site
    step: int
    rank: int
    seed: int
    tensor: str
    touched: tuple[Touched, ...]
    backend: str = "eager"
    note: str = ""

    @property
    def masked(self) -> bool:
        """Whether no bit changed: they were already as the fault would have made them."""
        return all(word.before == word.after for word in self.touched)


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
