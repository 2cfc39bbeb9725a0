"""One pass over all rows of a run's layers, kept for the heatmaps that are made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import streamlit as st

from sdc_guard.store.trace_reader import TraceReader

from ..standing import Answer, Standing
from . import queries_locate as queries
from .layer_rows import LayerRow
from .statistics_sql import Statistic
from .step_bins import Stretches, bin_width, stretches

_AT_ONCE: Final = 2_000_000  # rows that a page waits for: some tenths of a second
_STATISTICS_KEPT: Final = 2  # of 5,000 layers each takes 100 MB
_MOST_ROWS: Final = 15_000_000  # that a view reads anew: some two seconds of processor time


@dataclass(frozen=True)
class Scan:
    """What one pass gave.

    Attributes:
        extent: of the run, as it was then.
        by: the stretches that values are judged by.
        width: steps of a bin.
        bins, usual: see `queries_locate`.
        made: when, by the monotonic clock; no two scans of a server have the same.
    """

    extent: queries.Extent
    by: Stretches
    width: int
    bins: pa.Table
    usual: pa.Table
    made: float


@dataclass(frozen=True)
class Window:
    """What a heatmap shows.

    Attributes:
        first, last: steps, both included.
        low, high: places of layers, both included.
        least: a bin has so many steps or more, a power of two.
    """

    first: int
    last: int
    low: int
    high: int
    least: int = 1

    @property
    def width(self) -> int:
        """Steps of a bin."""
        return max(bin_width(self.first, self.last), self.least)


def scan(reader: TraceReader, statistic: Statistic) -> Scan | None:
    """One pass now; None where no layer's statistics are recorded."""
    extent = queries.extent(reader)
    if extent is None:
        return None
    by = stretches(extent.first, extent.last, extent.recorded)
    width = bin_width(extent.first, extent.last)
    return Scan(
        extent,
        by,
        width,
        queries.bins(reader, statistic, extent.first, extent.last, width),
        queries.usual(reader, statistic, by),
        time.monotonic(),
    )


def window_in(whole: Scan, steps: tuple[int, int], places: tuple[int, int], layers: int) -> Window:
    """A window, with the scan's bins where it would take long to read all its rows again.

    Args:
        whole: the scan.
        steps: first and last, within those of the scan.
        places: first and last, of the layers.
        layers: how many the run has.
    """
    known = whole.extent
    share = (steps[1] - steps[0] + 1) / (known.last - known.first + 1)
    rows = known.rows * share * (places[1] - places[0] + 1) / max(layers, 1)
    return Window(*steps, *places, least=whole.width if rows > _MOST_ROWS else 1)


class Scans:
    """The newest scan of each statistic of one run, for all browser sessions."""

    def __init__(self) -> None:
        self._kept: Standing[Scan | None] = Standing(_STATISTICS_KEPT)

    def of(
        self, reader: TraceReader, version: int, statistic: Statistic, *, rows: int
    ) -> Answer[Scan | None] | None:
        """The scan of a version of the run, or one that is not much older.

        Args:
            reader: of the run.
            version: of the run.
            statistic: what.
            rows: how many it has to read; for many None is given at first, see `news`.
        """
        asked = (_key(reader, statistic), version, lambda: scan(reader, statistic))
        return self._kept.of(*asked, at_once=rows <= _AT_ONCE)

    def news(
        self,
        reader: TraceReader,
        version: int,
        statistic: Statistic,
        shown: Answer[Scan | None] | None,
    ) -> bool:
        """Whether there is another scan by now than the one that is shown."""
        asked = (_key(reader, statistic), version, lambda: scan(reader, statistic))
        return self._kept.news(*asked, shown)


def _key(reader: TraceReader, statistic: Statistic) -> tuple[object, ...]:
    """A resume repeats steps: what was read before it says nothing of the run as it is now."""
    return (
        statistic.name,
        reader.attempt,
        *(attempt.started for attempt in reader.run_file.attempts),
    )


@st.cache_resource(max_entries=4, show_spinner=False)
def scans_of(run: str) -> Scans:
    """The one `Scans` of this server for a run."""
    return Scans()


@st.cache_data(max_entries=16, show_spinner=False)
def kept_extent(
    run: str, attempt: int | None, version: int, _reader: TraceReader
) -> queries.Extent | None:
    """What there is of layers' statistics in a version of a run: it takes a pass over all rows."""
    return queries.extent(_reader)


# one table for all who look at it: nobody changes it
@st.cache_resource(max_entries=8, show_spinner=False)
def kept_cells(
    made: float,
    statistic: str,
    window: tuple[int, int, int, int, int],
    rank: int | None,
    _make: Callable[[], pd.DataFrame],
) -> pd.DataFrame:
    """What `_make` gives, kept for the scan of the moment `made` and these choices."""
    return _make()


def heatmap_cells(
    reader: TraceReader,
    statistic: Statistic,
    whole: Scan,
    window: Window,
    rows: list[LayerRow],
    ids: list[int],
    rank: int | None = None,
) -> pd.DataFrame:
    """The cells of a window, at most rows times `step_bins.MAX_COLUMNS` of them.

    Args:
        reader: of the run.
        statistic: what.
        whole: the scan of the same statistic.
        window: steps within those of the run, and places of layers.
        rows: of the layers of the window.
        ids: the layers' numbers by their places.
        rank: of this rank alone; None for all.

    Returns:
        as `queries_locate.cells`.
    """
    shown = [(ids[place], n) for n, row in enumerate(rows) for place in _places(row)]
    numbers = [number for number, _ in shown]
    table = pa.table(
        {
            "layer": pa.array(numbers, pa.int64()),
            "row": pa.array([row for _, row in shown], pa.int64()),
        }
    )
    width = window.width
    if width == whole.width:
        bins = whole.bins["bin"]
        inside = pc.and_(
            pc.greater_equal(bins, window.first // width), pc.less_equal(bins, window.last // width)
        )
        found = whole.bins.filter(inside)
    else:
        among = (min(numbers), max(numbers)) if numbers else None
        found = queries.bins(reader, statistic, window.first, window.last, width, among)
    return queries.cells(found, whole.usual, table, statistic, whole.by, width, rank)


def _places(row: LayerRow) -> range:
    return range(row.first, row.last + 1)
