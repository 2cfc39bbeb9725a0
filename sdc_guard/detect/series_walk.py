"""One series from its first row to its last: which values are too far from their past."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .peaks import FEWEST, PeakThreshold, Tail, tail_of
from .series_baseline import WARM_UP, WINDOW, Floats, Scale, SeriesBaseline
from .series_tails import LOWEST

# A value that stays where it alarms for most of a window is how the training is from then on.
ADOPTED_AFTER: Final = 96
_AT_ONCE: Final = 64  # rows that are judged with the same limits


@dataclass(frozen=True)
class Shift:
    """The level before and after a restart, as compared: logs of norms, losses as they are."""

    row: int
    before: float
    after: float
    sigma: float


@dataclass(frozen=True)
class Walked:
    """What one series showed. All rows are those of the series that was given.

    Attributes:
        z: shape (rows,); NaN where it could not be judged.
        limits: shape (rows,), what |z| was compared with on that row's side.
        alarms: rows whose |z| was above.
        usual: shape (rows,), the value that would have had a z of 0, as compared.
        adopted: rows from which on a lasting change counts as normal.
        gaps: rows, among those with steps missing before them, at which a restart is likely:
            the values before and after do not fit.
        shifts: levels before and after the restarts.
    """

    z: Floats
    limits: Floats
    alarms: tuple[int, ...]
    usual: Floats
    adopted: tuple[int, ...]
    gaps: tuple[int, ...]
    shifts: tuple[Shift, ...]


def walk(
    values: Floats,
    scale: Scale,
    budgets: tuple[float, float] | None,
    tails: tuple[Tail, Tail] | None = None,
    restarts: Iterable[int] = (),
    gaps: Iterable[int] = (),
) -> Walked:
    """Judge a series row by row, each against what was admitted before.

    Args:
        values: finite; positive where the scale is logarithmic. Shape (rows,).
        scale: how they are judged.
        budgets: false alarms a row that are accepted, above and below; None to raise none.
        tails: what limits begin from, above and below; those of the scale by default.
        restarts: rows that begin a new window.
        gaps: rows before which steps are missing.
    """
    sides = [
        PeakThreshold(budget, tail, LOWEST)
        for budget, tail in zip(
            budgets or (None, None), tails or (scale.above, scale.below), strict=True
        )
    ]
    walker = _Walker(SeriesBaseline(scale), sides[0], sides[1], len(values))
    judged = walker.baseline.judged(values)
    begins, holes = set(restarts), set(gaps)
    stops = np.array(sorted(begins | holes), dtype=np.int64)
    row = 0
    while row < len(judged):
        if row in begins:
            walker.restart(row)
        room = walker.several()
        nxt = int(np.searchsorted(stops, row, side="right"))
        end = min(len(judged), row + room, int(stops[nxt]) if nxt < len(stops) else len(judged))
        if room > 1 and row not in holes:
            row = walker.take_several(row, judged[row:end])
        if row < end:  # one that alarms, or that has to be taken by itself
            walker.take(row, float(judged[row]), after_gap=row in holes)
            row += 1
    return walker.result()


def own_tails(walked: Walked, scale: Scale) -> tuple[Tail, Tail]:
    """The tails of a series as a whole, without its alarms; those of the scale if it is short.

    A log lies there complete: its later rows tell of the noise of its first ones, too.
    """
    calm = np.isfinite(walked.z)
    calm[list(walked.alarms)] = False
    z = walked.z[calm]
    if len(z) < FEWEST:
        return scale.above, scale.below
    above, below = (
        replace(tail, shape=shape)
        for tail, shape in zip((scale.above, scale.below), scale.shapes, strict=True)
    )
    return tail_of(np.maximum(z, 0.0), above), tail_of(np.maximum(-z, 0.0), below)


def beside(z: Floats, alarms: tuple[int, ...], lowest: float) -> NDArray[np.intp]:
    """Alarming rows, and those that lead to or from one without a break.

    Args:
        z: shape (rows,).
        alarms: rows.
        lowest: |z| from which on a row is no break.
    """
    far = np.abs(z) >= lowest  # NaN is not
    far[list(alarms)] = True
    group = np.cumsum(~far)
    return np.flatnonzero(far & np.isin(group, group[list(alarms)]))


@dataclass
class _Walker:
    baseline: SeriesBaseline
    above: PeakThreshold
    below: PeakThreshold
    rows: int
    z: Floats = field(init=False)
    limits: Floats = field(init=False)
    alarms: list[int] = field(default_factory=list)
    usual: Floats = field(init=False)
    adopted: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.z = np.full(self.rows, np.nan)
        self.limits = np.full(self.rows, np.nan)
        self.usual = np.full(self.rows, np.nan)
        self._recent: deque[tuple[float, bool]] = deque(maxlen=WINDOW)
        self._alarming = 0  # among the recent
        self._before: tuple[int, float, float] | None = None  # row, level, sigma at a restart
        self._since = 0
        self._until_renewal = _AT_ONCE

    def restart(self, row: int) -> None:
        """The window starts anew; its level is kept to tell by how much the next one differs."""
        level, sigma = self.baseline.level()
        if not np.isnan(level):
            self._before = (row, level, sigma)
        self._forget()

    def several(self) -> int:
        """How many rows may be taken at once."""
        if not self.baseline.full or self._alarming or self._before is not None:
            return 1
        return self._until_renewal

    def take_several(self, row: int, values: Floats) -> int:
        """Take rows up to the first that alarms; the row after them."""
        z, usual = self.baseline.scores(values)
        limits = np.where(z > 0, self.above.value, self.below.value)
        over = np.flatnonzero(np.abs(z) > limits)
        count = int(over[0]) if len(over) else len(values)
        self._write(row, z[:count], usual[:count], limits[:count])
        self._learn(z[:count])
        self.baseline.admit(values[:count])
        self._remember(values[:count], False)
        return row + count

    def take(self, row: int, value: float, *, after_gap: bool) -> None:
        """Judge one row."""
        z, usual = self.baseline.score(value)
        limit = self.above.value if z > 0 else self.below.value
        alarm = bool(abs(z) > limit)
        if alarm and after_gap and not self._alarming:
            self.gaps.append(row)
            self.restart(row)
            z, alarm = float("nan"), False
        if alarm:
            self.alarms.append(row)
        self._write(row, np.array([z]), np.array([usual]), np.array([limit]))
        if not alarm:
            self._learn(np.array([z]))
            self.baseline.admit(np.array([value]))
            self._compare_levels()
        self._remember(np.array([value]), alarm)
        if self._alarming >= ADOPTED_AFTER:
            self._adopt(row)

    def result(self) -> Walked:
        return Walked(
            self.z, self.limits, tuple(self.alarms), self.usual, tuple(self.adopted),
            tuple(self.gaps), tuple(self.shifts),
        )  # fmt: skip

    def _write(self, row: int, z: Floats, usual: Floats, limits: Floats) -> None:
        rows = slice(row, row + len(z))
        self.z[rows], self.usual[rows], self.limits[rows] = z, usual, limits

    def _learn(self, z: Floats) -> None:
        """Take in scores without an alarm."""
        self.above.take(np.maximum(z, 0.0))
        self.below.take(np.maximum(-z, 0.0))
        self._until_renewal -= len(z)
        if self._until_renewal <= 0:
            self.above.renew()
            self.below.renew()
            self._until_renewal = _AT_ONCE

    def _remember(self, values: Floats, alarm: bool) -> None:
        for value in values[-WINDOW:]:
            if len(self._recent) == WINDOW:
                self._alarming -= self._recent[0][1]
            self._recent.append((float(value), alarm))
            self._alarming += alarm

    def _adopt(self, row: int) -> None:
        """What lasted is the new past, its beginning left out: it may have been a transition."""
        lasting = np.array([value for value, alarm in self._recent if alarm])
        self.adopted.append(row)
        self._forget()
        self.baseline.admit(lasting[len(lasting) // 3 :])

    def _forget(self) -> None:
        self.baseline = SeriesBaseline(self.baseline.scale)
        self._recent.clear()
        self._alarming = 0
        self._since = 0

    def _compare_levels(self) -> None:
        if self._before is None:
            return
        self._since += 1
        if self._since < WARM_UP:
            return
        level, _ = self.baseline.level()
        row, before, sigma = self._before
        self._before = None
        if abs(level - before) > 2 * sigma:
            self.shifts.append(Shift(row, before, level, sigma))
