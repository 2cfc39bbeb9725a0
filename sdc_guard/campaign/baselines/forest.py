"""An isolation forest over the logs of all layers' norms."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from ..series import Floats, SignalSeries
from .scorer import Scorer

TREES: Final = 100
SCORE_LIMIT: Final = 0.5


class Forest(Scorer):
    """Anomaly score of the vector of log norms, fitted once, on the steps of `warm`.

    Source: Liu, Ting and Zhou (Isolation Forest, 2008), as scikit-learn has it with its defaults
    (100 trees of 256 samples): scores near 1 are anomalies, and above 0.5 it calls one. A missing,
    zero or non-finite norm is put at the layer's median of the history, for trees take no NaN.

    Args:
        seed: of the trees.
    """

    name: ClassVar[str] = "isolation forest"
    published: ClassVar[float | None] = SCORE_LIMIT

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._forest: Any = None
        self._median: Floats = np.empty(0)

    def warm(self, history: SignalSeries) -> None:
        from sklearn.ensemble import IsolationForest

        logs = _logs(history)
        seen = np.isfinite(logs).any(axis=0)
        self._median = np.zeros(history.layers)
        self._median[seen] = np.nanmedian(logs[:, seen], axis=0)
        self._forest = IsolationForest(n_estimators=TREES, random_state=self._seed)
        self._forest.fit(self._filled(logs))

    def score(self, series: SignalSeries) -> Floats:
        rows = np.full((len(series), series.layers + 1), np.nan)
        if len(series) and self._forest is not None:
            rows[:, -1] = -self._forest.score_samples(self._filled(_logs(series)))
        return rows

    def branch(self) -> Forest:
        """Itself: what it learned of the history never changes."""
        return self

    def step(self, series: SignalSeries, row: int, out: Floats) -> None:
        here = series.first_step + row
        out[:] = self.score(series.part(here, here + 1))[0]

    def _filled(self, logs: Floats) -> Floats:
        return np.where(np.isnan(logs), self._median, logs)


def _logs(series: SignalSeries) -> Floats:
    usable = np.isfinite(series.norms) & (series.norms > 0)
    return np.log(series.norms, where=usable, out=np.full(series.norms.shape, np.nan))
