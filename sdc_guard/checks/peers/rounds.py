"""One exchange between ranks, in a thread of its own: everyone gives a window, rank 0 judges.

Windows are counted from the start of the training on, and named by that: so ranks that disagree
about the step meet all the same, and it is seen that they do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from ...detect.peer_findings import PeerFinding
from ...detect.peers import PeerJudge
from ..across_ranks import Exchange
from .messages import MEASURES, Window, packed, read

MOST_FINDINGS: Final = 16  # of a window


@dataclass
class Outcome:
    """What came of one exchange, the same on every rank but for `silent`.

    Attributes:
        findings: with the run's number of the layer in place of its place.
        more: findings beyond those.
        begins: first step of each rank's window, where they disagree; else empty.
        silent: ranks that gave nothing; on other ranks rank 0, if there was no answer.
    """

    findings: list[PeerFinding] = field(default_factory=list)
    more: int = 0
    begins: dict[int, int] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()


class PeerRounds:
    """Exchanges windows, one after the other.

    Args:
        world: number of ranks.
        budget: false incidents per step; see `PeerJudge`.
    """

    def __init__(self, world: int, budget: float | None) -> None:
        self._world, self._budget = world, budget
        self._layers: list[int] = []
        self._judge: PeerJudge | None = None

    def __call__(self, exchange: Exchange, number: int, window: Window | None) -> Outcome:
        """Give this rank's window, None for no time; and get what rank 0 made of all.

        Args:
            exchange: between the ranks.
            number: of the exchange, alike on every rank.
            window: of this rank.
        """
        mine = b"" if window is None else packed(window)
        said = exchange.round(str(number), mine, range(self._world), self._answer)
        silent = frozenset() if exchange.over and not exchange.leads else frozenset(exchange.silent)
        if said is None:
            return Outcome(silent=silent)
        told: dict[str, Any] = json.loads(said)
        findings = [
            PeerFinding(**{**one, "ranks": tuple(one["ranks"])}) for one in told["findings"]
        ]
        begins = {int(rank): first for rank, first in told["begins"].items()}
        return Outcome(findings, told["more"], begins, silent)

    def _answer(self, given: dict[int, bytes]) -> bytes:
        windows = {rank: read(content) for rank, content in given.items() if content}
        begins = {rank: window.first for rank, window in sorted(windows.items())}
        agree = len(set(begins.values())) < 2
        found = self._judged(windows) if windows else []
        return json.dumps(
            {
                "findings": [asdict(one) for one in found[:MOST_FINDINGS]],
                "more": max(len(found) - MOST_FINDINGS, 0),
                "begins": {} if agree else begins,
            }
        ).encode()

    def _judged(self, windows: Mapping[int, Window]) -> list[PeerFinding]:
        """Of the steps at which most ranks are: others are at other steps."""
        (first, _), *_ = Counter(window.first for window in windows.values()).most_common(1)
        at = {rank: window for rank, window in windows.items() if window.first == first}
        layers = sorted({int(x) for window in at.values() for x in window.layers})
        if not layers or len(at) < 2:
            return []
        if not set(layers) <= set(self._layers) or self._judge is None:
            self._layers = layers
            self._judge = PeerJudge(self._world, len(layers), self._budget)
        steps = np.unique(np.concatenate([window.steps for window in at.values()]))
        values = np.full((len(steps), MEASURES, self._world, len(self._layers)), np.nan)
        for rank, window in at.items():
            rows = np.searchsorted(steps, window.steps)
            columns = np.searchsorted(self._layers, window.layers)
            values[rows[:, None, None], np.arange(MEASURES)[:, None], rank, columns] = window.values
        found = self._judge.judge(steps.tolist(), values)
        return [
            one if one.layer is None else replace(one, layer=self._layers[one.layer])
            for one in found
        ]
