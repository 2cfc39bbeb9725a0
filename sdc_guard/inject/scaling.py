"""Multiplying floating-point words by powers of two, on their bits: the same on every device.

A product of the numbers themselves would depend on the device: on how it converts 8-bit formats,
on what it makes of subnormal numbers, and on the bits of its NaNs.
"""

from __future__ import annotations

import torch

from .formats import FloatFormat


def scaled(
    words: torch.Tensor, exponents: torch.Tensor, width: int, form: FloatFormat
) -> torch.Tensor:
    """Words multiplied by 2**exponent.

    Exact, but for results below the smallest normal number, which are rounded to nearest, ties to
    even, and those above the largest one (see FloatFormat). Zeros, infinities and NaNs stay as
    they are, whatever their bits.

    Args:
        words: int64, unsigned numbers; those of 64 bits as signed numbers of the same bits.
        exponents: int64 of the same shape, between −4096 and 4096.
        width: bits of a word.
    """
    if form.mantissa == 0:
        moved = (words + exponents).clamp(0, form.above)
        return torch.where(words > form.top, words, moved)
    sign_bit = -(2**63) if width == 64 else 1 << width - 1
    sign, magnitude = words & sign_bit, words & ~sign_bit
    result = _scaled_magnitude(magnitude, exponents, form)
    if not form.negative_zero:
        sign = torch.where((result == 0) | (result == form.above), 0, sign)
    stays = (magnitude == 0) | (magnitude > form.top)
    return torch.where(stays, words, result | sign)


def _scaled_magnitude(
    magnitude: torch.Tensor, exponents: torch.Tensor, form: FloatFormat
) -> torch.Tensor:
    bits = form.mantissa
    field = magnitude >> bits
    # the value is significand · 2^(power − bias − bits)
    significand = (magnitude & (1 << bits) - 1) | (field > 0).to(torch.int64) << bits
    power = field.clamp(min=1) + exponents
    # the place of its highest bit: a float64 holds it exactly, and tells it by its exponent
    highest = (significand.to(torch.float64).view(torch.int64) >> 52) - 1023
    target = (power + highest - bits).clamp(min=1)  # exponent field of the result
    up = (power - target).clamp(0, bits)
    down = (target - power).clamp(0, 62)
    rounded = _rounded(significand << up, down)
    # a field of 1 with the highest bit absent is a subnormal number: both are field − 1 and add up
    found = ((target - 1).clamp(max=form.top >> bits) << bits) + rounded
    return torch.where((found > form.top) | (found < 0), form.above, found)


def _rounded(value: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """value / 2**by, to the nearest whole number, ties to even; value below 2⁵³."""
    kept = value >> by
    rest = value - (kept << by)
    half = torch.ones_like(by) << (by - 1).clamp(min=0)
    more = (rest > half) | ((rest == half) & (kept & 1 == 1))
    return kept + (more & (by > 0)).to(torch.int64)
