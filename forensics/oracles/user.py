"""The user, who judges by hand: nothing is judged here."""

from __future__ import annotations

from collections.abc import Collection

from sdc_guard.errors import ArchiveIncomplete

from ..checkpoint import Checkpoint
from .judgement import Judgement, Oracle


class UserOracle:
    """Stands for the user in a search whose judgements are all known."""

    name = "user"
    proves = False
    persists = False
    concurrent = False
    cost: float | None = None

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Refuse.

        Raises:
            ArchiveIncomplete: always; the search would have to ask.
        """
        raise ArchiveIncomplete(f"step {checkpoint.step} is not judged yet")


class AmongOthers:
    """An oracle whose answer rests on what others judged, too: it proves no more than they do.

    Args:
        oracle: judges what is left.
        others: names of those who judged before.
    """

    def __init__(self, oracle: Oracle, others: Collection[str]) -> None:
        self._oracle = oracle
        alone = all(name == oracle.name for name in others)
        self.name = oracle.name
        self.proves = oracle.proves and alone
        self.persists = oracle.persists and alone
        self.concurrent = oracle.concurrent
        self.cost = oracle.cost

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """As the oracle."""
        return self._oracle.judge(checkpoint)
