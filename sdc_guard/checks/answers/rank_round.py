"""What a rank answered at one step, told to the other ranks when all of it has arrived."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ...detect.alert import Alert
from ...detect.rank_answers import RankAnswers, told_value
from ...ranks import Ranks
from ..across_ranks import SameValue, Told

_OPEN: Final = 16  # steps whose answers have not all arrived


class RankRounds:
    """Compares the answers of a step between ranks, in the background.

    Args:
        ranks: this process among them; with one alone nothing is compared.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._same = SameValue(ranks, "known_answer") if ranks.world_size > 1 else None
        self._judge = RankAnswers(ranks.rank)
        self._due: OrderedDict[int, int] = OrderedDict()
        self._given: dict[int, list[tuple[str, str]]] = {}

    def begins(self, step: int, questions: int) -> None:
        """So many questions were asked at this step."""
        if self._same is None or not questions:
            return
        self._due[step], self._given[step] = questions, []
        if len(self._due) > _OPEN:
            self._forget(next(iter(self._due)))

    def answered(self, step: int, key: str, answer: str) -> None:
        """One of them was answered; later answers to questions repeated at that step are no part.

        Args:
            key: of the environment.
            answer: its hash.
        """
        given = self._given.get(step)
        if self._same is None or given is None:
            return
        given.append((key, answer))
        if len(given) == self._due[step]:
            self._same.tell(step, told_value(given))
            self._forget(step)

    def alerts(self) -> list[Alert]:
        """Of the steps about which all ranks are known by now.

        Raises:
            Exception: once, what ended the exchange between ranks.
        """
        if self._same is None:
            return []
        if self._same.trouble is not None:
            ended, self._same = self._same.trouble, None
            raise ended
        return self._judged(self._same.told())

    def close(self) -> list[Alert]:
        """End what was begun, for at most some seconds; what came of it."""
        return [] if self._same is None else self._judged(self._same.close())

    def _judged(self, told: list[Told]) -> list[Alert]:
        return [alert for one in told for alert in self._judge.judge(one.step, one.values)]

    def _forget(self, step: int) -> None:
        del self._due[step], self._given[step]
