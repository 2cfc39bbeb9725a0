"""How far each layer is from its own past, with what all layers and all ranks share taken out.

x is the logarithm of a measure of (rank, layer) at a step.

    r = x − median over ranks − c,   c = median over layers of (r − the layer's own level)
    z = (r − m) / (max(1.4826 · MAD, (q₉₀ − q₁₀) / 2.563) + s₀)

m, MAD and q are the median, the median absolute deviation and the quantiles of the layer's last
`WINDOW` admitted r; the level is m. The MAD of a stream that goes between two levels (two tasks in
turn, a short batch at times) is that of the more frequent one alone; its tenths see both. So a
change that all ranks share (a schedule of the learning rate) and one that all layers of a rank
share (a spike of the whole model, a bad batch) leave z as it is. Layers differ in size by orders of
magnitude: without their own levels the median over them would be the value, and the noise, of the
one layer in the middle. With few layers their median is no better than each of them, and is not
taken out. It is the two-way median polish of Tukey (1977), as steps come.

All of them are renewed every `RENEWAL` steps, more often at first: in between they hold still.
The window holds the last steps, with a gap where a value was missing or not admitted. A stream of
which more than a quarter of the window was not admitted begins anew.

A median over the window lags half of it behind a trend, which summed up step by step looks like a
shift. `Scored.detrended` is z against the line through the medians of the older and the newer half
of the window (Tukey's resistant line) instead of m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .medians import middles, middles_of_sorted

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOW: Final = 128
WARM_UP: Final = 64  # steps before anything is judged
FEWEST: Final = 32  # values in the window before a stream is judged: some miss steps
LASTING: Final = WINDOW // 4  # of the window's steps rejected: that is no outlier any more
RENEWAL: Final = 16  # a power of two: before that many steps it is renewed after 1, 2, 4, 8
_SORTED: Final = 1024  # streams sorted together: bounds the memory that is taken for a moment
FEWEST_LAYERS: Final = 4  # for their median to be taken out
MAD_TO_SIGMA: Final = 1.4826  # the MAD of a normal distribution is σ/1.4826
TENTHS_TO_SIGMA: Final = 2.563  # and its tenths lie 2.563 σ apart


@dataclass(frozen=True)
class Scored:
    """Some steps seen against the past, float64 (steps, kinds, ranks, layers).

    Attributes:
        residual: r; NaN where x is.
        z: NaN also where there is too little past.
        detrended: of the first kind alone, z against the window's line; (steps, ranks, layers).
            None unless asked for.
    """

    residual: Floats
    z: Floats
    detrended: Floats | None


@dataclass(frozen=True)
class _Line:
    """Value at the step `begun`, and its change per step; (ranks, layers)."""

    begun: int
    value: Floats
    slope: Floats


@dataclass(frozen=True)
class _Past:
    """What is known of the window, (kinds, ranks, layers); arrays in it are never written to."""

    steps: int
    level: Floats
    spread: Floats
    judgeable: Bools
    all_known: bool
    all_judgeable: bool
    rejected: NDArray[np.int64] | None
    line: _Line | None


class DoubleCentred:
    """The recent past of all streams (kind, rank, layer).

    Args:
        layers: how many.
        ranks: how many; 1 for a process alone, whose ranks' median is then not taken out.
        floors: s₀ of each kind of measure, in the unit of its x: a stream that never moved is no
            reason to divide by zero.
        trends: whether `Scored.detrended` is wanted; it is NaN until the window is full.
    """

    def __init__(
        self,
        layers: int,
        *,
        ranks: int = 1,
        floors: Sequence[float],
        trends: bool = False,
    ) -> None:
        self._shape = (len(floors), ranks, layers)
        self._floors = np.array(floors)[:, None, None]
        self._trends = trends
        # a row a stream, so that each lies in one piece; float32 sorts several times faster
        self._window = np.full((len(floors) * ranks * layers, WINDOW), np.nan, dtype=np.float32)
        unknown = np.full(self._shape, np.nan)
        never = np.zeros(self._shape, dtype=bool)
        self._past = _Past(0, unknown, unknown, never, False, False, None, None)

    @property
    def until_renewal(self) -> int:
        """Steps that may be scored together before medians are renewed; at least 1."""
        steps = self._past.steps
        return (1 << steps.bit_length()) - steps if steps < RENEWAL else RENEWAL - steps % RENEWAL

    @property
    def judgeable(self) -> Bools:
        """Streams with enough past, shape (kinds, ranks, layers)."""
        return self._past.judgeable

    @property
    def spread(self) -> Floats:
        """What r − m is divided by, (kinds, ranks, layers); NaN before the first step."""
        return self._past.spread

    def score(self, x: Floats) -> Scored:
        """Score some steps; nothing is changed.

        Args:
            x: logarithms, shape (steps, kinds, ranks, layers), no more steps than
                `until_renewal`. NaN for what is missing, or is not to be judged.
        """
        past, residual = self._past, self._centred(x)
        z = (residual - past.level) / past.spread
        if not past.all_judgeable:
            z = np.where(past.judgeable, z, np.nan)
        return Scored(residual, z, self._detrended(residual[:, 0]) if self._trends else None)

    def _centred(self, x: Floats) -> Floats:
        if self._shape[1] > 1:
            x = x - np.moveaxis(middles(np.moveaxis(x, 2, 3)), 3, 2)
        if self._shape[2] < FEWEST_LAYERS:
            return x
        past = self._past
        shared = middles(x - past.level if past.steps else x)
        if not past.all_known:  # a rank without any layer that has been seen before
            shared = np.where(np.isfinite(shared), shared, 0.0)
        residual: Floats = x - shared
        return residual

    def _detrended(self, residual: Floats) -> Floats:
        line = self._past.line
        if line is None:
            return np.full(residual.shape, np.nan)
        since = self._past.steps - line.begun + np.arange(len(residual))[:, None, None]
        found: Floats = (residual - (line.value + line.slope * since)) / self._past.spread[0]
        return found

    def admit(self, residual: Floats, healthy: Bools | None = None) -> Bools | None:
        """Take in steps that were scored, and renew medians if it is time to.

        Args:
            residual: of `score`.
            healthy: streams that raised no alarm, like `residual`; None for all.

        Returns:
            The streams, shape (kinds, ranks, layers), that were out of their limits so often that
            they begin anew: a shift that stands is the new level, and what goes back and forth
            between two levels is no outlier at either. None for none.
        """
        # infinite, and not a gap: what was rejected is counted
        values = residual if healthy is None else np.where(healthy, residual, np.inf)
        steps, before = len(values), self._past
        columns = _columns(before.steps, steps)
        rejected, anew = self._count_rejected(healthy, self._window[:, columns])
        self._window[:, columns] = values.reshape(steps, -1).T
        now = before.steps + steps
        if anew is not None:
            self._window[anew.ravel()] = np.nan
        renew = anew is not None or now % RENEWAL == 0 or now in (1, 2, 4, 8)
        self._past = self._renewed(now, rejected) if renew else _moved(before, now, rejected)
        return anew

    def forget(self, kind: int) -> None:
        """Begin anew with all streams of a kind: what comes is not comparable with its past."""
        self._window.reshape(len(self._floors), -1)[kind] = np.nan
        rejected = self._past.rejected
        if rejected is not None:
            rejected = rejected.copy()
            rejected[kind] = 0
        self._past = self._renewed(self._past.steps, rejected)

    def _count_rejected(
        self, healthy: Bools | None, overwritten: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64] | None, Bools | None]:
        """Rejected steps of each stream in the window as it will be."""
        before = self._past.rejected
        if healthy is None and before is None:
            return None, None
        rejected = np.zeros(self._shape, dtype=np.int64) if before is None else before
        rejected = rejected - np.isinf(overwritten).sum(axis=1).reshape(self._shape)
        if healthy is not None:
            rejected += (~healthy).sum(axis=0)
        anew: Bools = rejected >= LASTING
        rejected = np.where(anew, 0, rejected)
        return (rejected if rejected.any() else None), (anew if anew.any() else None)

    def _renewed(self, steps: int, rejected: NDArray[np.int64] | None) -> _Past:
        # some at a time: sorted copies are as large as what they are made of
        parts = np.split(self._window, range(_SORTED, len(self._window), _SORTED))
        count, middle, wide = (
            np.concatenate(part) for part in zip(*map(_spread, parts), strict=True)
        )
        # few steps show less of how far a stream moves: not at all less if these are independent,
        # by the root of their number if it wanders
        widened = (WINDOW / np.clip(count, FEWEST, WINDOW)) ** 0.5
        spread = (widened * wide).reshape(self._shape)
        judgeable = ((count >= FEWEST) & (steps >= WARM_UP)).reshape(self._shape)
        return _Past(
            steps=steps,
            level=middle.reshape(self._shape),
            spread=spread + self._floors,
            judgeable=judgeable,
            all_known=bool(count.all()),
            all_judgeable=bool(judgeable.all()),
            rejected=rejected,
            line=self._through_halves(steps) if self._trends and steps >= WINDOW else None,
        )

    def _through_halves(self, steps: int) -> _Line:
        half, shape = WINDOW // 2, self._shape[1:]
        rows = self._window[: shape[0] * shape[1]]
        oldest_first = (steps + np.arange(WINDOW)) % WINDOW
        older = middles(rows[:, oldest_first[:half]]).reshape(shape)
        newer = middles(rows[:, oldest_first[half:]]).reshape(shape)
        slope = (newer - older) / half
        # the middle of the newer half lies (half + 1) / 2 steps before the step to come
        return _Line(steps, newer + slope * (half + 1) / 2, slope)

    def remember(self, steps: int) -> tuple[_Past, NDArray[np.float32]]:
        """What `go_back` needs to undo as many healthy steps, no more than `WINDOW`."""
        return self._past, self._window[:, _columns(self._past.steps, steps)].copy()

    def go_back(self, remembered: tuple[_Past, NDArray[np.float32]]) -> None:
        """Undo what was admitted since; there was no alarm in it."""
        self._past, overwritten = remembered
        self._window[:, _columns(self._past.steps, overwritten.shape[1])] = overwritten


def _spread(window: NDArray[np.float32]) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Number of values, median and σ of streams, a row each."""
    ordered = np.sort(window, axis=1)  # NaN sorts last
    count = np.isfinite(ordered).sum(axis=1)
    middle = middles_of_sorted(ordered, count)
    with np.errstate(invalid="ignore"):
        apart = np.abs(ordered - middle[:, None].astype(np.float32))
    apart.sort(axis=1)
    wide = np.fmax(MAD_TO_SIGMA * middles_of_sorted(apart, count), _between_tenths(ordered, count))
    return count, middle, wide


def _between_tenths(ordered: NDArray[np.float32], count: NDArray[np.int64]) -> Floats:
    """σ by the range between the tenths of the first `count` values of each sorted row."""
    rows, last = np.arange(len(ordered)), np.maximum(count - 1, 0)
    low = ordered[rows, last // 10]
    high = ordered[rows, last - last // 10]
    found: Floats = (high.astype(np.float64) - low) / TENTHS_TO_SIGMA
    return np.where(count > 0, found, np.nan)


def _columns(first: int, steps: int) -> slice | NDArray[np.int64]:
    """Of the window, those of some steps: in one piece where they are."""
    place = first % WINDOW
    if place + steps <= WINDOW:
        return slice(place, place + steps)
    return (place + np.arange(steps)) % WINDOW


def _moved(past: _Past, steps: int, rejected: NDArray[np.int64] | None) -> _Past:
    """The same past at a later step; `dataclasses.replace` takes several times longer."""
    return _Past(
        steps,
        past.level,
        past.spread,
        past.judgeable,
        past.all_known,
        past.all_judgeable,
        rejected,
        past.line,
    )
