"""Exact zeros in one layer that never had any: what a kernel that did not write leaves behind.

A gradient without a zero in it gets one by a unit that is off, a token or an input that the batch
does not have, or an element that was not written. A unit that is off shows in the layer before it
and in the one after it, and is then no layer's own. What is missing from the batch leaves whole
rows or columns of a matrix. So zeros in one layer alone, in another number than whole rows or
columns have, have no healthy cause left; in such a number they have one, and how often it comes is
not known before it has come: after n steps without, it comes in the next one with a probability of
1/(n + 2) (Laplace's rule of succession), which must be less than the budget.

What was told counts as seen: a layer that has got zeros is no layer without them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from .double_centred import WARM_UP, Bools, Floats
from .step_signals import Ints, StepSignals

LEAST: Final = 16  # that a few elements which happen to cancel do not reach
_FEW: Final = 8  # zeros a step; with more a layer has a use for them
_TIMES: Final = 8  # what it has had; gradients that underflow get more of them step by step
_NEVER: Final = -1


@dataclass(frozen=True)
class JudgedZeros:
    """Some steps judged, (steps, layers).

    Attributes:
        score: float64, zeros over the number of them that is an alarm; NaN where nothing is judged.
        over: alarms; None where there is none.
        most: int64 (layers,), what each had had at the most when the steps were over; -1 for no
            gradient.
        seen: int64 (layers,), steps by then in which each had a gradient.
    """

    score: Floats
    over: Bools | None
    most: Ints
    seen: Ints


class NewZeros:
    """Judges the number of exact zeros of each layer, where it has had hardly any.

    Args:
        shapes: of the layers' gradients; () where only their number of elements is known: then any
            number of zeros may be whole rows.
        numel: int64 (layers,), elements of each.
        budget: probability with which a healthy step may raise an alarm; None for never.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], numel: Ints, budget: float | None) -> None:
        self._units = [_units(shape, int(n)) for shape, n in zip(shapes, numel, strict=True)]
        self._numel = numel
        self._budget = budget
        self._most = np.full(len(numel), _NEVER, dtype=np.int64)
        self._seen = np.zeros(len(numel), dtype=np.int64)

    @property
    def limit(self) -> float:
        """What the score is compared with; inf for never."""
        return np.inf if self._budget is None else 1.0

    def judge(self, signals: StepSignals) -> JudgedZeros:
        """Judge some steps; nothing is changed.

        Args:
            signals: with an axis of steps.
        """
        here = np.isfinite(signals.norms)
        seen = self._seen + np.cumsum(here, axis=0)
        zeros = np.where(here, signals.zeros, _NEVER)
        most = np.maximum.accumulate(np.concatenate([self._most[None], zeros]))
        before, most = most[:-1], most[1:]
        judged = here & (seen > WARM_UP) & (before <= _FEW)
        score = np.where(judged, zeros / (LEAST + _TIMES * np.maximum(before, 0)), np.nan)
        over = (score > 1) & (zeros < self._numel)
        if over.any():
            known = before != _NEVER
            others = ((zeros > before) & known).sum(axis=1) > 1
            over &= ~(others | (known & ~here).any(axis=1))[:, None]
            for step, layer in np.argwhere(over):
                times = int(seen[step, layer]) - 1
                over[step, layer] = not self._healthy(
                    int(layer), int(zeros[step, layer]), int(before[step, layer]), times
                )
        score[(score > 1) & ~over] = np.nan
        alarms = over if self._budget is not None and over.any() else None
        return JudgedZeros(score, alarms, most[-1], seen[-1])

    def _healthy(self, layer: int, zeros: int, before: int, times: int) -> bool:
        """Whether as many are whole rows or columns, and a few more, and such may come."""
        whole = any(zeros % unit <= before for unit in self._units[layer])
        return whole and (self._budget or 0.0) * (times + 2) < 1

    def admit(self, judged: JudgedZeros) -> None:
        """Take in steps that were judged."""
        self._most, self._seen = judged.most, judged.seen

    def remember(self) -> tuple[Ints, Ints]:
        """What `go_back` needs."""
        return self._most, self._seen

    def go_back(self, remembered: tuple[Ints, Ints]) -> None:
        """Undo what was admitted since."""
        self._most, self._seen = remembered


def _units(shape: Sequence[int], numel: int) -> tuple[int, ...]:
    """Elements of a row and of a column of a matrix.

    Those of a filter are what one output sees, and what sees one input at one of its taps: what is
    rare and stands at an edge is missing from some taps only.

    One for what is no matrix, and for a part of one, of which it is not known how it was cut.
    """
    if len(shape) < 2 or prod(shape) != numel or not numel:
        return (1,)
    return numel // shape[0], shape[0]
