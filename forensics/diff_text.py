"""What `sdc-bisect diff` prints of two checkpoints: what is wrong, the finding, the tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from .bit_diff import BitDiff, part_of
from .checkpoint_diff import TensorDiff, dtype_name
from .diff_order import by_unusual
from .diff_troubles import Trouble
from .places import place_text
from .state_kinds import KINDS

MOST: Final = 12  # tensors that are printed without --all
_MOST_BITS: Final = 6  # places of bits that are named one by one
_MOST_NAMED: Final = 3
_MOST_TROUBLES: Final = 6
_OTHER_KINDS: Final = {
    "unreadable": "cannot be read",
    "not compared": "not compared",
    "dtype": "of another dtype",
    "shape": "of another shape",
    "only in A": "only in A",
    "only in B": "only in B",
}


def diff_lines(
    found: Sequence[TensorDiff],
    troubles: Sequence[Trouble] = (),
    *,
    every: bool = False,
    unseen: int = 0,
) -> list[str]:
    """What the checkpoints themselves have wrong, how many tensors differ, and which.

    Args:
        found: every tensor.
        troubles: of the checkpoints.
        every: name all tensors; else those that look least like a training step, MOST of them.
        unseen: values beside them that were not evaluated: nothing is said to be equal of these.
    """
    lines = trouble_lines(troubles, every=every)
    lines.append(_summary(found, unseen))
    lines += _elsewhere(found, every)
    return lines + _groups(found, every)


def trouble_lines(troubles: Sequence[Trouble], *, every: bool = False) -> list[str]:
    """A line for each of the first, and how many more there are."""
    shown = troubles if every else troubles[:_MOST_TROUBLES]
    lines = [one.line for one in shown]
    if len(troubles) > len(shown):
        letters = ", ".join(sorted({one.of for one in troubles[len(shown) :]}))
        lines.append(f"and {len(troubles) - len(shown):,} more of that kind in {letters} (--all)")
    return lines


def _summary(found: Sequence[TensorDiff], unseen: int) -> str:
    """The finding, in a line: nothing is called equal that was not compared."""
    counts = Counter(one.kind for one in found)
    rest = f"; {_count(unseen, 'value')} not compared" if unseen else ""
    if not found:
        return f"no tensors to compare{rest}"
    if set(counts) <= {"same"}:
        compared = f"{_tensors(len(found))} equal, bit for bit"
        return f"what was compared: {compared}{rest}" if unseen else f"no difference: {compared}"
    changed = [one.bits for one in found if one.bits is not None]
    others = [f"{counts[kind]:,} {text}" for kind, text in _OTHER_KINDS.items() if counts[kind]]
    if set(counts) <= {"only in A", "only in B"}:
        return f"no tensor in common: {', '.join(others)}{rest}"
    if not changed:
        same = f"{counts['same']:,} equal, bit for bit"
        return f"{_count(len(found), 'tensor')}: {', '.join([same, *others])}"
    elements = sum(one.changed for one in changed)
    bits = sum(one.bits for one in changed)
    verb = "differs" if len(changed) == 1 else "differ"
    text = (
        f"{len(changed):,} of {_count(len(found), 'tensor')} {verb}: "
        f"{_count(elements, 'element')}, {_count(bits, 'bit')}"
    )
    return "; ".join([text, *others])


def _elsewhere(found: Sequence[TensorDiff], every: bool) -> list[str]:
    """Tensors that are not compared bit by bit, a line for each reason."""
    lines = []
    for kind, text in _OTHER_KINDS.items():
        here = [one for one in found if one.kind == kind]
        shown = here if every else here[:_MOST_NAMED]
        if not here:
            continue
        named = ", ".join(f"{one.name} ({one.text})" for one in shown)
        lines.append(f"{text}: {named}{_more(len(here) - len(shown))}")
    return lines


def _groups(found: Sequence[TensorDiff], every: bool) -> list[str]:
    different = by_unusual(found)
    shown = {one.name for one in (different if every else different[:MOST])}
    lines = []
    for role in KINDS:
        here = [one for one in different if one.role == role]
        if not here:
            continue
        whole = sum(one.role == role and one.kind in ("bits", "same") for one in found)
        verb = "differs" if len(here) == 1 else "differ"
        lines.append(f"{role}: {len(here):,} of {whole:,} {verb}")
        named = [one for one in here if one.name in shown]
        lines += [line for one in named for line in _lines(one)]
        if len(named) < len(here):
            lines.append(f"  {_more(len(here) - len(named)).strip()}")
    return lines


def _more(count: int) -> str:
    return f" and {count:,} more (--all)" if count > 0 else ""


def _lines(one: TensorDiff) -> list[str]:
    bits, dtype = one.bits, one.dtype
    assert bits is not None
    assert dtype is not None
    largest = "" if bits.largest is None else f"; largest change {bits.largest:.3g}"
    if bits.farthest is not None and bits.farthest != bits.index:
        largest += f" at {place_text(bits.farthest, one.shape)}"
    lines = [
        f"  {one.name} ({dtype_name(dtype)}): {_share(bits)}, "
        f"{_count(bits.bits, 'bit')}: "
        f"{_histogram(one, bits)}{largest}"
    ]
    if bits.index is not None:
        half = f", {bits.half} part" if bits.half else ""
        lines.append(
            f"      first at {place_text(bits.index, one.shape)}{half}: "
            f"0x{bits.before:x} -> 0x{bits.after:x} ({bits.before_value} -> {bits.after_value})"
            f"{_extent(bits)}"
        )
    return lines


def _share(bits: BitDiff) -> str:
    whole = _count(bits.numel, "element")
    return f"all {whole}" if bits.changed == bits.numel > 1 else f"{bits.changed:,} of {whole}"


def _extent(bits: BitDiff) -> str:
    """Up to where it goes, where that is short of everything."""
    assert bits.index is not None
    assert bits.last is not None
    if bits.changed in (1, bits.numel):
        return ""
    span = bits.last - bits.index + 1
    return f"; up to {bits.last}" + (", each one in a row" if span == bits.changed else "")


def _histogram(one: TensorDiff, bits: BitDiff) -> str:
    """In how many words which bits differ: by place where they are few, else by part."""
    assert one.dtype is not None
    if len(bits.by_bit) <= _MOST_BITS:
        return ", ".join(_at(place, count, one) for place, count in sorted(bits.by_bit.items()))
    if not bits.by_part:
        low, high = min(bits.by_bit), max(bits.by_bit)
        return f"bits {low} to {high}"
    parts = []
    for part, count in bits.by_part.items():
        places = [place for place in bits.by_bit if part_of(place, one.dtype) == part]
        low, high = min(places), max(places)
        where = f"bit {low}" if low == high else f"bits {low} to {high}"
        parts.append(f"{count:,} in the {part} ({where})")
    return ", ".join(parts)


def _at(place: int, count: int, one: TensorDiff) -> str:
    assert one.dtype is not None
    part = part_of(place, one.dtype)
    named = f"bit {place}" if part is None else f"bit {place} ({part})"
    return named if count == 1 else f"{named} of {count:,}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _tensors(count: int) -> str:
    return f"{_count(count, 'tensor')} {'is' if count == 1 else 'are'}"
