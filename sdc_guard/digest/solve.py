"""From two digests of a tensor to the one element that differs."""

from __future__ import annotations

from dataclasses import dataclass

from .reference import MASK64, Digest, K, mix64


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


def solve_single(before: Digest, after: Digest, *, numel: int, width: int) -> tuple[int, int] | None:
    """Index and change of the bits, if exactly one element can explain the difference.

    With one element changed, ΔS1 = bits' − bits and ΔS2 = (i+1)·ΔS1, both modulo 2⁶⁴. This
    is a candidate: `confirm_change` proves it with H.

    Args:
        before: digest of the tensor as it was.
        after: digest of the tensor as it is.
        numel: number of elements; of words, for a complex tensor.
        width: bits per element.

    Returns:
        (index, change as a signed number), or None when no single element fits.
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
    if not 1 <= place <= numel:
        return None
    return place - 1, change


def confirm_change(
    before: Digest, after: Digest, index: int, change: int, *, bits_after: int
) -> SingleChange | None:
    """Prove with H that element `index` went from bits_after − change to bits_after.

    Args:
        before, after: the two digests of the tensor.
        index, change: as `solve_single` found them.
        bits_after: the element's bits in the tensor as it is.
    """
    bits_before = bits_after - change
    if bits_before < 0:
        return None
    salt = K * index & MASK64
    step = (mix64(bits_after ^ salt) - mix64(bits_before ^ salt)) & MASK64
    if step != (after.h - before.h) & MASK64:
        return None
    return SingleChange(index, bits_before, bits_after)


def _centred(value: int) -> int:
    value &= MASK64
    return value - 2**64 if value >= 2**63 else value
