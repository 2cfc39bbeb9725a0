"""What `sdc-bisect diff` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .bit_diff import BitDiff
from .checkpoint_diff import TensorDiff
from .three_checkpoints import ThreeWay

_MOST = 40  # tensors that are printed; all of them are in the JSON output
_MOST_BITS = 6


def diff_lines(found: Sequence[TensorDiff]) -> list[str]:
    """A line or two for each tensor that differs, those with the fewest changed elements first."""
    different = [one for one in found if one.kind != "same"]
    different.sort(key=lambda one: one.bits.changed if one.bits else 0)
    lines = [line for one in different[:_MOST] for line in _lines(one)]
    if len(different) > _MOST:
        lines.append(f"... and {len(different) - _MOST:,} more tensors (--json has all)")
    return [*lines, _summary(found)]


def _summary(found: Sequence[TensorDiff]) -> str:
    counts = Counter(one.kind for one in found)
    if set(counts) <= {"same"}:
        return f"no difference: {len(found):,} tensors are equal, bit for bit"
    named = {"bits": "differ in bits", "same": "are equal", "dtype": "are of another dtype",
             "shape": "are of another shape", "unreadable": "cannot be read"}  # fmt: skip
    parts = [f"{count:,} {named.get(kind, kind)}" for kind, count in counts.items()]
    return f"{len(found):,} tensors: {', '.join(parts)}"


def _lines(one: TensorDiff) -> list[str]:
    if one.bits is None:
        return [f"{one.name}: {one.kind}: {one.text}"]
    bits = one.bits
    lines = [
        f"{one.name}: {bits.changed:,} of {bits.numel:,} elements, "
        f"{bits.bits:,} {'bit' if bits.bits == 1 else 'bits'} ({_parts(bits)}){_largest(bits)}"
    ]
    if bits.before is not None and bits.after is not None:
        lines.append(
            f"    first at {bits.index}: 0x{bits.before:x} -> 0x{bits.after:x} "
            f"({bits.before_value} -> {bits.after_value})"
        )
    return lines


def _largest(bits: BitDiff) -> str:
    return "" if bits.largest is None else f", largest change {bits.largest:.3g}"


def _parts(bits: BitDiff) -> str:
    parts = [f"{count:,} in the {part}" for part, count in bits.by_part.items()]
    most = sorted(bits.by_bit.items(), key=lambda item: -item[1])[:_MOST_BITS]
    places = ", ".join(f"{bit}" for bit, _ in sorted(most))
    more = "" if len(bits.by_bit) <= _MOST_BITS else ", ..."
    noun = "bit" if len(bits.by_bit) == 1 else "bits"
    return ", ".join([*parts, f"{noun} {places}{more}"])


def three_lines(found: ThreeWay) -> list[str]:
    """How many tensors differ in each interval, what jumped, and what that says."""
    names = ("A and B", "B and C", "A and C")
    lines = [
        f"{name}: {share:.0%} of the tensors differ"
        for name, share in zip(names, found.shares, strict=True)
    ]
    for name, one in list(found.jumps.items())[:_MOST]:
        lines.append(
            f"{name}: {one.returned:,} elements of B jumped and are back in C, {one.stayed:,} "
            f"stayed (the first at {one.first})"
        )
    return [*lines, found.meaning]
