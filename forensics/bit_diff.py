"""Which bits of two tensors differ. Pure; in pieces of bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from sdc_guard.inject.formats import FORMATS, WordFormat

_PIECE: Final = 1 << 20  # words at a time
_WORD: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PARTS: Final = ("sign", "exponent", "mantissa")


@dataclass(frozen=True)
class BitDiff:
    """How two tensors of one dtype and shape differ.

    Attributes:
        numel: words: elements, or twice as many of complex numbers.
        changed: words that differ.
        by_bit: place of a bit, 0 the lowest, to in how many words it differs.
        by_part: the same by part of a floating-point number: sign, exponent, mantissa; {} of
            integers.
        largest: absolute change of a value that is finite in both; None where there is none.
        index: of the first word that differs, counted row by row; None where none does.
        before, after: its bits as an unsigned number.
        before_value, after_value: its values, as text for NaN's sake.
    """

    numel: int
    changed: int = 0
    by_bit: dict[int, int] = field(default_factory=dict)
    by_part: dict[str, int] = field(default_factory=dict)
    largest: float | None = None
    index: int | None = None
    before: int | None = None
    after: int | None = None
    before_value: str | None = None
    after_value: str | None = None

    @property
    def bits(self) -> int:
        """Bits that differ in all."""
        return sum(self.by_bit.values())

    def as_dict(self) -> dict[str, Any]:
        """In JSON output; the bits of an element in hexadecimal."""
        first = None
        if self.index is not None and self.before is not None and self.after is not None:
            first = {
                "index": self.index,
                "before": f"0x{self.before:x}",
                "after": f"0x{self.after:x}",
                "before_value": self.before_value,
                "after_value": self.after_value,
            }
        return {
            "elements": self.numel,
            "changed": self.changed,
            "bits": self.bits,
            "by_bit": {str(bit): count for bit, count in self.by_bit.items()},
            "by_part": self.by_part,
            "largest_change": self.largest,
            "first": first,
        }


def bit_diff(one: torch.Tensor, other: torch.Tensor) -> BitDiff:
    """How `other` differs from `one`.

    Args:
        one, other: of one dtype and shape, on the CPU.
    """
    dtype = torch.view_as_real(one).dtype if one.is_complex() else one.dtype
    left, right = _words(one), _words(other)
    width = 8 * left.dtype.itemsize
    changed, first = 0, None
    by_bit = [0] * width
    largest: float | None = None
    for start in range(0, left.numel(), _PIECE):
        a, b = left[start : start + _PIECE], right[start : start + _PIECE]
        places = torch.nonzero(a != b).view(-1)
        if not places.numel():
            continue
        changed += places.numel()
        a, b = a[places], b[places]
        first = first or (start + int(places[0]), int(a[0]), int(b[0]))
        flips = a ^ b
        for bit in range(width):
            by_bit[bit] += int(torch.count_nonzero(flips & _bit(bit, width)))
        largest = _larger(largest, _change(a, b, dtype))
    counts = {bit: count for bit, count in enumerate(by_bit) if count}
    if first is None:
        return BitDiff(left.numel())
    index, before, after = first
    return BitDiff(
        left.numel(), changed, counts, _by_part(counts, dtype), largest, index,
        before % 2**width, after % 2**width, _value(before, left.dtype, dtype),
        _value(after, left.dtype, dtype),
    )  # fmt: skip


def _format(dtype: torch.dtype) -> WordFormat:
    """Of a dtype that nothing is known of only the width is."""
    return FORMATS.get(dtype, WordFormat(8 * dtype.itemsize, None))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.view(-1).view(_WORD[plain.dtype.itemsize])


def _bit(place: int, width: int) -> int:
    """A word with one bit set, as torch's signed integers have it."""
    return -(1 << place) if place == width - 1 and width > 8 else 1 << place


def _by_part(counts: dict[int, int], dtype: torch.dtype) -> dict[str, int]:
    number = _format(dtype).number
    if number is None:
        return {}
    sign = _format(dtype).width - 1
    found = dict.fromkeys(_PARTS, 0)
    for bit, count in counts.items():
        part = "mantissa" if bit < number.mantissa else "sign" if bit == sign else "exponent"
        found[part] += count
    return {part: count for part, count in found.items() if count}


def _change(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> float | None:
    if _format(dtype).element is None or not (dtype.is_floating_point or dtype.itemsize < 8):
        return None
    values = [words.view(dtype).double() for words in (a, b)]
    change = (values[0] - values[1]).abs()
    change = change[torch.isfinite(change)]
    return float(change.max()) if change.numel() else None


def _larger(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _value(word: int, words: torch.dtype, dtype: torch.dtype) -> str:
    if _format(dtype).element is None:
        return f"0x{word:x}"
    value = torch.tensor([word], dtype=words).view(dtype)[0]
    number = value.double().item() if dtype.is_floating_point else value.item()
    if isinstance(number, float) and math.isfinite(number):
        return f"{number:.9g}"
    return str(number)
