"""What `sdc-bisect diff` prints of three checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from .diff_text import MOST, trouble_lines
from .diff_troubles import Trouble
from .jumps import Jumps
from .places import place_text
from .state_kinds import kind_of
from .three_checkpoints import ThreeWay

_MOST_NAMED: Final = 3


def three_lines(
    found: ThreeWay, troubles: Sequence[Trouble] = (), *, every: bool = False
) -> list[str]:
    """What is wrong with the files, the finding, the shares that differ, and what jumped.

    Args:
        found: of the three.
        troubles: of the files and their values.
        every: name all tensors; else MOST of them.
    """
    lines = [*trouble_lines(troubles, every=every), found.meaning]
    names = ("A and B", "B and C", "A and C")
    differ = [f"{name} {share:.0%}" for name, share in zip(names, found.shares, strict=True)]
    noun = "tensor" if found.tensors == 1 else "tensors"
    if found.tensors:
        lines.append(f"of {found.tensors:,} {noun} differ between {', '.join(differ)}")
    shown = list(found.jumps.items())[: None if every else MOST]
    for kind, group in groupby(shown, key=lambda item: kind_of(item[0], None)):
        lines.append(f"{kind}:")
        lines += [f"  {_jumped(name, one, found)}" for name, one in group]
    if more := len(found.jumps) - len(shown):
        lines.append(f"  and {more:,} more (--all)")
    return lines + _apart(found, every)


def _jumped(name: str, one: Jumps, found: ThreeWay) -> str:
    parts = []
    if one.returned:
        parts.append(f"{_elements(one.returned)} jumped in B and {_be(one.returned)} back in C")
    if one.stayed:
        verb = "stays" if one.stayed == 1 else "stay"
        parts.append(f"{_elements(one.stayed)} jumped in B and {verb} there in C")
    where = place_text(one.first, found.shapes.get(name, ()))
    values = " -> ".join(one.values)
    return f"{name}: {'; '.join(parts)} (the first at {where}: {values})"


def _apart(found: ThreeWay, every: bool) -> list[str]:
    if not found.apart:
        return []
    shown = list(found.apart.items())[: None if every else _MOST_NAMED]
    named = ", ".join(f"{name} ({why})" for name, why in shown)
    more = len(found.apart) - len(shown)
    return [f"not compared: {named}" + (f" and {more:,} more (--all)" if more else "")]


def _elements(count: int) -> str:
    return "1 element" if count == 1 else f"{count:,} elements"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
