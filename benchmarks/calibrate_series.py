"""Incidents in healthy logs, at fixed limits and learnt: what those of `check-log` stand above.

    python benchmarks/calibrate_series.py                       # seeds 0 to 5: calibrate
    python benchmarks/calibrate_series.py --seeds 100 106       # others: judge

Rates are incidents per 10,000 rows of loss and gradient norm together; alarms within 50 rows are
one incident. A fixed limit is what applies to the first `ENOUGH` rows.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from series_streams import TAILS, TRAININGS, Made, made

from sdc_guard.detect import series_limit
from sdc_guard.detect.proportion import wilson
from sdc_guard.detect.series import judge
from sdc_guard.detect.series_log import Column, SeriesLog

FIXED = (6.0, 8.0, 10.0, 12.0, 15.0, 20.0)
BUDGET = 1e-4


def incidents(stream: Made, fixed: float | None) -> int:
    """Incidents at a fixed limit, or with limits that learn."""
    loss, norm = stream
    log = SeriesLog(np.arange(len(loss)), Column.of(loss), Column.of(norm))
    before = series_limit.BEFORE_ENOUGH, series_limit.ENOUGH
    if fixed is not None:
        series_limit.BEFORE_ENOUGH, series_limit.ENOUGH = fixed, len(loss) + 1  # type: ignore[misc]
    try:
        return len(judge(log, BUDGET).incidents)
    finally:
        series_limit.BEFORE_ENOUGH, series_limit.ENOUGH = before  # type: ignore[misc]


def streams(seeds: range, rows: int) -> Iterator[tuple[str, list[Made]]]:
    """Each family of logs, with a log for each seed."""
    for tail in TAILS:
        yield f"formula, {tail}", [made(tail, seed, 3 * rows) for seed in seeds]
    for name, train in TRAININGS.items():
        yield f"training, {name}", [train(seed, rows) for seed in seeds]


def line(name: str, rows: int, counts: NDArray[np.int64]) -> str:
    """A row of the table."""
    return f"{name:<28}{rows:>8}" + "".join(f"{1e4 * count / rows:>9.2f}" for count in counts)


def main() -> None:
    """Print a row for each family, and the whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 6), metavar=("FIRST", "END"))
    parser.add_argument("--rows", type=int, default=3000, help="of a training; formulas have 3×")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, torch {torch.__version__}, seeds {options.seeds}, budget {BUDGET}"
    )
    heads = [*(f"z > {limit:g}" for limit in FIXED), "learnt"]
    print(f"{'family':<28}{'rows':>8}" + "".join(f"{head:>9}" for head in heads))
    total, count = 0, np.zeros(len(heads), dtype=np.int64)
    for name, family in streams(range(*options.seeds), options.rows):
        rows = sum(len(loss) for loss, _ in family)
        found = np.array([sum(incidents(one, limit) for one in family) for limit in (*FIXED, None)])
        total, count = total + rows, count + found
        print(
            f"{name:<28}{rows:>8}" + "".join(f"{1e4 * one / rows:>9.2f}" for one in found),
            flush=True,
        )
    print(line("all", total, count))
    low, high = wilson(int(count[-1]), total)
    print(f"learnt, per 10,000 rows, 95 %: {1e4 * low:.2f} to {1e4 * high:.2f}")


if __name__ == "__main__":
    main()
