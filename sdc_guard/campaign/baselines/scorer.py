"""What all detectors have in common where they are compared: a number for each layer and step."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import numpy as np

from ..series import Floats, SignalSeries


class Entry(Protocol):
    """What takes part in a comparison: one detector, or several that share what they remember."""

    def warm(self, history: SignalSeries) -> None:
        """Take in steps that came before those to score."""

    def streams(self, series: SignalSeries) -> dict[str, Floats]:
        """Scores of the next steps by detector, each of shape (steps, layers + 1).

        The last column is the score of the step as a whole; NaN where there is nothing to say.
        """

    def branch(self) -> Entry:
        """One that goes on from where this one is, and leaves it there."""


class Scorer(ABC):
    """A detector without its threshold, as an `Entry`.

    A score is larger the stranger a value is; an alarm is a score *above* the threshold, so that a
    score of NaN never raises one. What the detector remembers follows its published rule, also
    where its alarms are judged with another threshold: only the last comparison is moved.

    Attributes:
        name: in tables and on the command line.
        published: the threshold of its source; None if it has none.
    """

    name: ClassVar[str]
    published: ClassVar[float | None] = None

    def warm(self, history: SignalSeries) -> None:
        """Take in steps that came before those to score, as if they had been scored."""
        self.score(history)

    def score(self, series: SignalSeries) -> Floats:
        """Scores of the next steps, shape (steps, layers + 1).

        The last column is the score of the step as a whole; NaN where there is nothing to say.
        """
        rows = np.full((len(series), series.layers + 1), np.nan)
        for row in range(len(series)):
            self.step(series, row, rows[row])
        return rows

    def streams(self, series: SignalSeries) -> dict[str, Floats]:
        """See `Entry`."""
        return {self.name: self.score(series)}

    def branch(self) -> Entry:
        """See `Entry`."""
        return copy.deepcopy(self)

    @abstractmethod
    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        """Score one step, and take it in.

        Args:
            series: in which the step is.
            row: its place there.
            out: float64 (layers + 1,), filled with NaN; the scores are written to it.
        """
