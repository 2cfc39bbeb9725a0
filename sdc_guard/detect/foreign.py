"""Frozen parameters that the script itself writes to: momentum encoders, averaged copies.

No optimizer writes to them, so a change between two steps is no proof by itself. What
changes at its very first comparison is taken for written by the script and passed over from then
on; what was seen at rest once is expected to stay.
"""

from __future__ import annotations

import numpy as np

from .carried import DigestTable, changed


class ForeignState:
    """Learns which of the layers that no optimizer writes to are written to."""

    def __init__(self) -> None:
        self._unknown: set[int] = set()
        self._known: set[int] = set()
        self._written: set[int] = set()

    @property
    def settled(self) -> bool:
        """Whether there is nothing to learn and nothing to pass over."""
        return not (self._unknown or self._written)

    def watch(self, layers: set[int]) -> None:
        """Set the layers, by number: those that no optimizer owns, and frozen ones."""
        self._written &= layers  # one that was unfrozen is the optimizer's from now on
        self._known &= layers
        self._unknown = layers - self._known

    def learn(self, left_behind: DigestTable | None, found: DigestTable) -> set[int]:
        """Take in one comparison; the layers that turned out to be written to by it."""
        if not self._unknown or left_behind is None:
            return set()
        compared = {layer for kind, layer in found.keys if kind == "param"}
        compared &= {layer for kind, layer in left_behind.keys if kind == "param"}
        compared &= self._unknown
        differ = {key[1] for key, _, _ in changed(left_behind, found) if key[0] == "param"}
        self._unknown -= compared
        self._known |= compared
        self._written |= compared & differ
        return compared & differ

    def without_written(self, table: DigestTable) -> DigestTable:
        """The table without the layers that are written to."""
        if not self._written:
            return table
        kept = [
            place
            for place, (kind, layer) in enumerate(table.keys)
            if kind != "param" or layer not in self._written
        ]
        rows = table.rows[np.array(kept, dtype=np.intp)]
        return DigestTable(tuple(table.keys[place] for place in kept), rows)
