"""A table of ways between places: which pairs arrive, and which do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .line import Outcome
from .patterns import Damage, named, patterns_for, sent

Way = tuple[int, int]  # from one place to another


class Mover(Protocol):
    """Moves tensors between places, of which each has a number."""

    def put(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """A copy of a tensor of the host at a place."""

    def copy(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """A copy of a tensor that is at `source`, at `target`."""

    def fetch(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """A copy in host memory of a tensor that is at a place."""


@dataclass
class Table:
    """What became of what was sent.

    Attributes:
        places: their names.
        ways: damage of each way that was tried.
    """

    places: Sequence[str]
    ways: dict[Way, Damage] = field(default_factory=dict)

    @property
    def wrong(self) -> list[Way]:
        """Ways on which something arrived otherwise."""
        return sorted(way for way, damage in self.ways.items() if damage)

    @property
    def wrong_between(self) -> list[Way]:
        """Of these, the ways between two places that both exchange with the host without error."""
        return [
            (a, b)
            for a, b in self.wrong
            if a != b and not any(self.ways.get((c, c)) for c in (a, b))
        ]

    def rows(self) -> tuple[str, ...]:
        """As text: a row for each sender, a column for each receiver."""
        width = max(5, *(len(name) + 1 for name in self.places))
        head = " ".join(f"{name:>{width}}" for name in ("from\\to", *self.places))
        body = [
            " ".join(
                f"{text:>{width}}"
                for text in (name, *(self._cell(source, to) for to in range(len(self.places))))
            )
            for source, name in enumerate(self.places)
        ]
        return (head, *body)

    def outcome(self, what: str) -> Outcome:
        """PASS if everything arrived on every way."""
        detail = {"places": list(self.places), "wrong": [self._told(way) for way in self.wrong]}
        if not self.wrong:
            ways = "one way" if len(self.ways) == 1 else f"{len(self.ways)} ways"
            return Outcome("PASS", f"{what}: {ways}, every bit arrived", detail)
        pairs = ", ".join(f"{self.places[a]} to {self.places[b]}" for a, b in self.wrong[:8])
        more = f" and {len(self.wrong) - 8} more" if len(self.wrong) > 8 else ""
        words = sum(self.ways[way].words for way in self.wrong)
        nan = sum(self.ways[way].nan for way in self.wrong)
        text = f"wrong from {pairs}{more}: {words} words, {nan} of them became NaN"
        return Outcome("FAIL", text, detail, self.rows())

    def _cell(self, source: int, target: int) -> str:
        damage = self.ways.get((source, target))
        if damage is None:
            return "-"
        return "WRONG" if damage else "ok"

    def _told(self, way: Way) -> dict[str, Any]:
        source, target = way
        return {"from": self.places[source], "to": self.places[target]} | self.ways[way].as_object()


def there_and_back(mover: Mover, places: Mapping[int, str], sizes: Iterable[int]) -> Table:
    """Send every pattern to each place and fetch it again: a table of one column."""
    table = Table([*places.values(), "and back"])
    back = len(places)
    for place in places:
        damage = table.ways[place, back] = Damage()
        for size in sizes:
            for pattern in patterns_for(size):
                tensor = sent(pattern, size, place)
                arrived = mover.fetch(mover.put(tensor, place), place)
                damage.note(named(pattern, size), tensor, arrived)
    return table


def every_way(mover: Mover, places: Sequence[str], sizes: Iterable[int]) -> Table:
    """Send every pattern from each place to each other one, and to itself by way of the host.

    What arrives is compared with what the host sent; so is what a place gives back at once, that
    a wrong way between two places can be told from a wrong way to one of them.
    """
    table = Table(places)
    numbers = range(len(places))
    for source in numbers:
        for size in sizes:
            for pattern in patterns_for(size):
                tensor = sent(pattern, size, source)
                there = mover.put(tensor, source)
                for target in numbers:
                    damage = table.ways.setdefault((source, target), Damage())
                    copied = there if target == source else mover.copy(there, source, target)
                    damage.note(named(pattern, size), tensor, mover.fetch(copied, target))
    return table
