"""From two digests of a tensor to the one element that differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .lanes import K
from .reference import MASK64, Digest, indices, mix64, mix64_tensor, signed64, unsigned
from .span import Span, runs_of

_CHUNK = 1 << 20
_FEW = 16  # places that are looked at one by one


@dataclass(frozen=True)
class SingleChange:
    """A change of one element: `index` in the flattened tensor, and the bits before and after."""

    index: int
    before: int
    after: int

    @property
    def bits(self) -> list[int]:
        """Positions of the flipped bits, 0 the lowest."""
        flipped = self.before ^ self.after
        return [bit for bit in range(64) if flipped >> bit & 1]


def solve_places(
    before: Digest, after: Digest, *, numel: int, width: int
) -> tuple[range, int] | None:
    """Indices that a single changed element can have, and the change of its bits.

    With one element changed, ΔS1 = bits' − bits and ΔS2 = (i+1)·ΔS1, both modulo 2⁶⁴. A change
    that is divisible by 2ᵏ leaves i+1 known modulo 2⁶⁴⁻ᵏ only: one place for elements of up to
    32 bits, possibly more for the high bits of 64-bit ones.

    Args:
        before: digest of the tensor as it was.
        after: digest of the tensor as it is.
        numel: number of elements; of words, for a complex tensor.
        width: bits per element.

    Returns:
        (indices, change as a signed number, modulo 2⁶⁴), or None when no single element fits.
    """
    change = _centred(after.s1 - before.s1)
    weighted = (after.s2 - before.s2) & MASK64
    if change == 0 or abs(change) >= 2**width:
        return None
    # (i+1)·change is known modulo 2⁶⁴: divide out the power of two, invert the odd rest
    shift = (change & -change).bit_length() - 1
    if weighted & ((1 << shift) - 1):
        return None
    modulus = 1 << (64 - shift)
    place = (weighted >> shift) * pow(change >> shift, -1, modulus) % modulus
    places = range((place or modulus) - 1, numel, modulus)
    return (places, change) if places else None


def solve_single(
    before: Digest, after: Digest, *, numel: int, width: int
) -> tuple[int, int] | None:
    """Index and change of the bits, if exactly one element can explain the difference.

    This is a candidate: `confirm_change` proves it with H. Where several places fit, as for the
    sign of a 64-bit element, the sums alone cannot choose: `find_change` does, from the tensor.

    Args:
        before, after, numel, width: as in `solve_places`.

    Returns:
        (index, change as a signed number), or None when no element fits, or more than one.
    """
    solved = solve_places(before, after, numel=numel, width=width)
    if solved is None or len(solved[0]) > 1:
        return None
    places, change = solved
    return places[0], change


def confirm_change(
    before: Digest, after: Digest, index: int, change: int, *, bits_after: int
) -> SingleChange | None:
    """Prove with H that element `index` went from bits_after − change to bits_after.

    Args:
        before, after: the two digests of the tensor.
        index, change: as `solve_single` found them.
        bits_after: the element's bits in the tensor as it is, unsigned.
    """
    bits_after &= MASK64
    bits_before = (bits_after - change) & MASK64
    salt = K * index & MASK64
    step = (mix64(bits_after ^ salt) - mix64(bits_before ^ salt)) & MASK64
    if step != (after.h - before.h) & MASK64:
        return None
    return SingleChange(index, bits_before, bits_after)


def find_change(
    row: torch.Tensor, before: Digest, after: Digest, *, place: int | Span = 0
) -> SingleChange | None:
    """The one element by which a tensor changed, proven by H.

    Args:
        row: `words` of the tensor as it is, or of a part of it.
        before: digest of the tensor, or of the part, as it was.
        after: digest of it as it is.
        place: of the part in the whole tensor, in words.
    """
    width = 8 * row.element_size()
    span = runs_of(place, row.numel())
    end = span.first + sum(
        (size - 1) * stride for size, stride in zip(span.sizes, span.strides, strict=True)
    )
    solved = solve_places(before, after, numel=end + 1, width=width)
    if solved is None:
        return None
    for index, bits in _fitting(row, span, *solved, before, after):
        found = confirm_change(before, after, index, solved[1], bits_after=bits)
        if found is not None and found.before < 2**width:
            return found
    return None


def _fitting(
    row: torch.Tensor, span: Span, places: range, change: int, before: Digest, after: Digest
) -> Iterator[tuple[int, int]]:
    """Those of `places` that are in the row and may explain the change of H, and their bits."""
    if len(places) <= _FEW:
        for index in places:
            position = span.position(index)
            if position is not None:
                yield index, int(row[position]) & ((1 << 8 * row.element_size()) - 1)
        return
    for start in range(0, row.numel(), _CHUNK):
        bits = unsigned(row[start : start + _CHUNK])
        there = indices(span, start, bits)
        salt = there * signed64(K)
        step = mix64_tensor(bits ^ salt) - mix64_tensor((bits - signed64(change & MASK64)) ^ salt)
        hits = (step == signed64((after.h - before.h) & MASK64)).nonzero().flatten()
        for found, word in zip(there[hits].tolist(), bits[hits].tolist(), strict=True):
            if found in places:
                yield found, word & MASK64


def _centred(value: int) -> int:
    return signed64(value & MASK64)
