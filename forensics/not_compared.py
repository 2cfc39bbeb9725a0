"""What checkpoints hold beside tensors: numbers, and what nothing evaluates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .aliases import OtherName, other_names
from .content import Content

_MOST: Final = 3


@dataclass(frozen=True)
class Besides:
    """What is no tensor, and does not decide whether two checkpoints are equal.

    Attributes:
        numbers: path of a number or text that is not the same in all, to what each has, as text.
        foreign: path of what is not evaluated, a quantised or sparse tensor for one, to its type.
        tied: names of tied weights that not all have, and which are no difference.
    """

    numbers: Mapping[str, tuple[str, ...]]
    foreign: Mapping[str, str]
    tied: Sequence[OtherName] = ()

    def lines(self, every: bool) -> list[str]:
        """A line for each of the three where there is something; `every` names all."""
        lines = []
        if self.tied:
            lines.append(f"tied, and no difference: {_few([one.text for one in self.tied], every)}")
        if self.foreign:
            named = [f"{name} ({kind})" for name, kind in self.foreign.items()]
            lines.append(f"not evaluated, and not compared: {_few(named, every)}")
        if self.numbers:
            named = [f"{name} {' -> '.join(values)}" for name, values in self.numbers.items()]
            lines.append(f"numbers beside the tensors: {_few(named, every)}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        numbers = {name: list(values) for name, values in self.numbers.items()}
        tied = [
            {"name": one.name, "only_in": list(one.held), "tied_to": one.kept} for one in self.tied
        ]
        return {"numbers": numbers, "not_evaluated": dict(self.foreign), "tied": tied}


def not_compared(contents: Sequence[Content]) -> Besides:
    """Of checkpoints in their order."""
    names = dict.fromkeys(name for one in contents for name in one.numbers)
    numbers = {}
    for name in names:
        values = tuple(repr(one.numbers[name]) if name in one.numbers else "-" for one in contents)
        if all(name in one.numbers for one in contents) and len({*values}) > 1:
            numbers[name] = values
    foreign = {name: kind for one in contents for name, kind in one.foreign.items()}
    return Besides(numbers, foreign, other_names(contents))


def _few(named: Sequence[str], every: bool) -> str:
    shown = named if every else named[:_MOST]
    more = len(named) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more (--all)" if more else "")
