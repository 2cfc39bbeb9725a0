"""The interface of what carries out a round of judgings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class WorkerLost(Exception):
    """Whoever judged an item ended before it answered; what was judged says nothing of that.

    Attributes:
        item: that was judged.
        reason: a word or two.
    """

    def __init__(self, item: object, reason: str) -> None:
        super().__init__(item, reason)
        self.item = item
        self.reason = reason


class Executor(Protocol):
    """Calls one function for many items.

    Attributes:
        jobs: how many at once.
    """

    @property
    def jobs(self) -> int: ...

    def run(
        self, call: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[Item, Answer]]:
        """Each item with its answer, as soon as it is there, in any order.

        What the call raises is raised after the answers of the others. On Ctrl-C the answers that
        are there already still come, then KeyboardInterrupt. Closing it ends what still runs.

        Raises:
            WorkerLost: after the answers of the others, where processes other than this one judge.
        """
        ...
