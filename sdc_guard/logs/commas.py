"""What commas in the numbers of a log mean: thousands, or fractions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ..errors import LogUnreadable
from .numbers import GROUPED

_FRACTION: Final = re.compile(r"[-+]?\d*,\d+")  # and no group of three, as in 0,25


class Commas:
    """Watches a log's cells for commas, where a comma does not surely begin a fraction.

    Args:
        decimal: whether it does; then there is nothing to watch for.
    """

    def __init__(self, *, decimal: bool) -> None:
        self._decimal = decimal
        self._grouped: dict[str, int] = {}  # cells by role
        self._fractions: dict[str, str] = {}  # the first one by role

    def take(self, role: str, cell: object) -> None:
        """A cell as the file has it."""
        if self._decimal or not isinstance(cell, str) or "," not in cell:
            return
        text = cell.strip()
        if GROUPED.fullmatch(text):
            self._grouped[role] = self._grouped.get(role, 0) + 1
        elif _FRACTION.fullmatch(text):
            self._fractions.setdefault(role, text)

    def notes(self, names: Mapping[str, str | None], where: str) -> Iterator[str]:
        """What commas were read as.

        Args:
            names: of the columns, by role.
            where: the file.

        Raises:
            LogUnreadable: some commas of a column begin fractions, so that others, which look
                like those between thousands, may do so, too.
        """
        for role, count in self._grouped.items():
            if role in self._fractions:
                raise LogUnreadable(
                    f"commas in {names[role]} are those of thousands or of fractions, as in "
                    f"{self._fractions[role][:40]!r}", where=where,
                    next_step="write its numbers with points",
                )  # fmt: skip
            yield f"commas in {names[role]} are read as those between thousands, in {count:,} cells"
