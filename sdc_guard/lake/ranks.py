"""The ranks of a node, as the command line names them."""

from __future__ import annotations

import re

from ..errors import UsageError

_PART = re.compile(r"(\d+)(?:-(\d+))?")


def rank_numbers(text: str | None) -> set[int] | None:
    """ "0-7,16" as a set of numbers, both ends included; None, for all ranks, of None.

    Raises:
        UsageError: not such a list.
    """
    if text is None:
        return None
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    ranks: set[int] = set()
    for part in parts:
        first = int(part[1]) if part else 0
        last = int(part[2] or part[1]) if part else -1
        if last < first:
            raise UsageError("no list of ranks", where=text, next_step="--ranks 0-7 or --ranks 0,3")
        ranks |= set(range(first, last + 1))
    return ranks
