"""Which bits of two tensors differ. Pure; in pieces of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from sdc_guard.inject.formats import FORMATS, WordFormat

_PIECE: Final = 1 << 20  # words at a time
_SAMPLE: Final = 1 << 12  # changes of a piece, for the median
_WORD: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PARTS: Final = ("sign", "exponent", "mantissa")


@dataclass(frozen=True)
class BitDiff:
    """How two tensors of one dtype and shape differ.

    Attributes:
        numel: elements.
        changed: elements that differ.
        by_bit: place of a bit, 0 the lowest, to in how many words it differs. A word is an
            element, or the real or imaginary part of a complex one.
        by_part: the same by part of a floating-point number: sign, exponent, mantissa; {} of
            integers.
        largest: absolute change of a word whose value is finite in both; None where there is none.
        farthest: the first element with that change; None where there is none.
        typical: median of these changes, of a sample where there are many; None where there are
            none.
        index: of the first element that differs, counted row by row; None where none does.
        last: of the last one.
        before, after: bits of the first word that differs, as an unsigned number.
        before_value, after_value: its values, as text for NaN's sake.
        half: "real" or "imaginary" where that word is half of a complex element, else "".
    """

    numel: int
    changed: int = 0
    by_bit: dict[int, int] = field(default_factory=dict)
    by_part: dict[str, int] = field(default_factory=dict)
    largest: float | None = None
    farthest: int | None = None
    typical: float | None = None
    index: int | None = None
    last: int | None = None
    before: int | None = None
    after: int | None = None
    before_value: str | None = None
    after_value: str | None = None
    half: str = ""

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
            if self.half:
                first["half"] = self.half
        return {
            "elements": self.numel,
            "changed": self.changed,
            "bits": self.bits,
            "by_bit": {str(bit): count for bit, count in self.by_bit.items()},
            "by_part": self.by_part,
            "largest_change": self.largest,
            "largest_index": self.farthest,
            "typical_change": self.typical,
            "first": first,
            "last_index": self.last,
        }


def bit_diff(one: torch.Tensor, other: torch.Tensor) -> BitDiff:
    """How `other` differs from `one`.

    Args:
        one, other: of one dtype and shape, on the CPU, with memory of their own.
    """
    each = 2 if one.is_complex() else 1  # words of an element
    dtype = torch.view_as_real(one).dtype if one.is_complex() else one.dtype
    left, right = _words(one), _words(other)
    width = 8 * left.dtype.itemsize
    changed, first, last = 0, None, None
    by_bit = [0] * width
    largest: float | None = None
    farthest: int | None = None
    samples = []
    for start in range(0, left.numel(), _PIECE):
        a, b = left[start : start + _PIECE], right[start : start + _PIECE]
        places = torch.nonzero(a != b).view(-1)
        if not places.numel():
            continue
        changed += places.numel() if each == 1 else torch.unique(places // each).numel()
        a, b = a[places], b[places]
        first = first or (start + int(places[0]), int(a[0]), int(b[0]))
        last = (start + int(places[-1])) // each
        flips = a ^ b
        for bit in range(width):
            by_bit[bit] += int(torch.count_nonzero(flips & _bit(bit, width)))
        if (found := _changes(a, b, dtype)) is not None:
            changes, of = found
            most = int(changes.argmax())
            if largest is None or float(changes[most]) > largest:
                largest = float(changes[most])
                farthest = (start + int(places[of[most]])) // each
            samples.append(changes[:: max(1, changes.numel() // _SAMPLE)])
    counts = {bit: count for bit, count in enumerate(by_bit) if count}
    if first is None:
        return BitDiff(one.numel())
    word, before, after = first
    return BitDiff(
        one.numel(), changed, counts, part_counts(counts, dtype), largest, farthest,
        float(torch.cat(samples).median()) if samples else None, word // each, last,
        before % 2**width, after % 2**width, _value(before, left.dtype, dtype),
        _value(after, left.dtype, dtype), "" if each == 1 else ("real", "imaginary")[word % 2],
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


def part_counts(counts: Mapping[int, int], dtype: torch.dtype) -> dict[str, int]:
    """Counts by bit, added up by part of a floating-point number; {} of other dtypes."""
    found = dict.fromkeys(_PARTS, 0)
    for bit, count in counts.items():
        if (part := part_of(bit, dtype)) is None:
            return {}
        found[part] += count
    return {part: count for part, count in found.items() if count}


def part_of(bit: int, dtype: torch.dtype) -> str | None:
    """Sign, exponent or mantissa: where a bit of a word lies; None of what is no such number.

    Args:
        bit: its place, 0 the lowest.
        dtype: of the tensor, complex ones too.
    """
    word = _format(dtype)
    if word.number is None:
        return None
    signed = word.number.mantissa > 0  # a format of powers of two alone has no sign
    if signed and bit == word.width - 1:
        return "sign"
    return "mantissa" if bit < word.number.mantissa else "exponent"


def _changes(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Absolute changes of the values that are finite in both, and which those are; None of none."""
    if _format(dtype).element is None or not (dtype.is_floating_point or dtype.itemsize < 8):
        return None
    values = [words.view(dtype).double() for words in (a, b)]
    change = (values[0] - values[1]).abs()
    finite = torch.nonzero(torch.isfinite(change)).view(-1)
    return (change[finite], finite) if finite.numel() else None


def _value(word: int, words: torch.dtype, dtype: torch.dtype) -> str:
    if _format(dtype).element is None:
        return f"0x{word:x}"
    value = torch.tensor([word], dtype=words).view(dtype)[0]
    number = value.double().item() if dtype.is_floating_point else value.item()
    if isinstance(number, float) and math.isfinite(number):
        return f"{number:.9g}"
    return str(number)
