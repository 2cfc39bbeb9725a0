"""The answers of several ranks to the probe's question: who differs from whom."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from .alert import Alert, Severity
from .known_answer import DETECTOR

_HALF: Final = 32
_LEAST: Final = 3  # ranks of one kind: of two that differ, nothing says which is wrong


def told_value(answers: Sequence[tuple[str, str]]) -> int:
    """One number for what a rank answered in one step, 64 bits.

    The upper half stands for the environments, so that only ranks that are alike are compared;
    the lower one for the answers. Two different answers are taken for equal once in 2³².

    Args:
        answers: key of the environment and hash of the answer, in the order they were asked.
    """
    environments = "/".join(key for key, _ in answers)
    return _half(environments) << _HALF | _half("/".join(found for _, found in answers))


def _half(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_HALF // 8).digest(), "little")


class RankAnswers:
    """Judges the answers of all ranks; a picture that stays is one alert.

    Args:
        rank: of this process. Rank 0 tells of all ranks, another one only of itself.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._standing: dict[int, int] = {}

    def judge(self, step: int, values: Mapping[int, int]) -> list[Alert]:
        """Alerts of one step.

        Args:
            values: `told_value` of each rank that gave one.
        """
        alerts = []
        kinds = sorted({value >> _HALF for value in values.values()})
        picture: dict[int, int] = {}
        for kind in kinds:
            group = {rank: value for rank, value in values.items() if value >> _HALF == kind}
            others = _minority(group)
            picture |= {rank: group[rank] for rank in others}
            new = any(self._standing.get(rank) != group[rank] for rank in others)
            if new and (self._rank == 0 or self._rank in others):
                alerts.append(_alert(step, group, others))
        self._standing = picture
        return alerts


def _minority(group: Mapping[int, int]) -> list[int]:
    """Ranks that differ from more than half of their kind; without such a majority, all."""
    (usual, count), *rest = Counter(group.values()).most_common()
    if not rest:
        return []
    if len(group) < _LEAST or 2 * count <= len(group):
        return sorted(group)
    return sorted(rank for rank, value in group.items() if value != usual)


def _alert(step: int, group: Mapping[int, int], others: list[int]) -> Alert:
    blamed = len(others) < len(group)
    if blamed:
        names = ", ".join(map(str, others))
        what = (
            f"rank {names} gave another answer than {len(group) - len(others)} ranks with the same "
            "kind of device and the same settings"
        )
    else:
        what = (
            f"ranks {', '.join(map(str, sorted(group)))} have the same kind of device and the same "
            "settings and gave different answers, without a majority: which is wrong is not known"
        )
    answers = {str(rank): f"{value % 2**_HALF:08x}" for rank, value in sorted(group.items())}
    detail = {
        "text": f"the known answer across ranks: {what}",
        "kind": "ranks differ",
        "ranks": others,
        "answers": answers,
    }
    severity: Severity = "proven" if blamed else "suspect"
    return Alert(step, DETECTOR, None, "", 1.0, 0.0, severity, detail)
