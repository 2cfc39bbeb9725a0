"""Those whose judgements are all known: the user, and oracles that judged before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sdc_guard.errors import ArchiveIncomplete

from ..checkpoint import Checkpoint
from .judgement import Judgement, Oracle

# proves, persists; of all others it is not known
_TRAITS: Final[Mapping[str, tuple[bool, bool]]] = {"trace": (True, True), "shadow": (False, True)}


class JudgedBefore:
    """Stands for those who judged in a search that has nothing left to ask.

    Args:
        names: of theirs; what they prove together is what each of them does.
    """

    concurrent = False
    cost: float | None = None

    def __init__(self, names: Collection[str]) -> None:
        alone = set(names)
        self.name = alone.pop() if len(alone) == 1 else "several"
        self.proves, self.persists = _TRAITS.get(self.name, (False, False))

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
