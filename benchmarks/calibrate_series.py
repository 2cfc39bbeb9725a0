"""What the limits of `sdc-guard check-log` begin from, and what they then let pass.

    python benchmarks/calibrate_series.py                       # seeds 0 to 4: the tails
    python benchmarks/calibrate_series.py --seeds 100 105       # others: judge

The first table is for detect/series_tails.py, all families pooled with as many rows each; `mean`
is that of the families' own shapes. In the
second, rates are incidents per 10,000 rows of loss and gradient norm together; nothing went wrong
in these logs. For the last columns single rows were changed, and they say which share of them was
in an incident.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch
from machine import line, machine
from series_streams import TAILS, TRAININGS, Floats, Made, made

from sdc_guard.detect.peaks import SHARE, pareto, tail_of
from sdc_guard.detect.proportion import wilson
from sdc_guard.detect.series import DEFAULT_BUDGET, judge
from sdc_guard.detect.series_baseline import LOSS_SCALE, NORM_SCALE, Scale
from sdc_guard.detect.series_log import Column, SeriesLog
from sdc_guard.detect.series_walk import walk

Family = tuple[str, list[Made]]
Change = Callable[[Made, int], None]
_PLACES = (0.1, 0.3, 0.8)  # of the changed rows


def _norm_times(factor: float) -> Change:
    def change(stream: Made, row: int) -> None:
        stream[1][row] *= factor

    return change


def _loss_times(factor: float) -> Change:
    def change(stream: Made, row: int) -> None:
        stream[0][row] *= factor

    return change


CHANGES: dict[str, Change] = {
    "norm ×3": _norm_times(3),
    "norm ×10": _norm_times(10),
    "norm ×100": _norm_times(100),
    "norm ×.01": _norm_times(0.01),
    "loss +20%": _loss_times(1.2),
    "loss ×2": _loss_times(2),
}


def families(seeds: range, rows: int) -> Iterator[Family]:
    """Each family of logs, with a log for each seed."""
    for tail in TAILS:
        yield f"formula, {tail}", [made(tail, seed, rows) for seed in seeds]
    for name, train in TRAININGS.items():
        yield f"training, {name}", [train(seed, rows) for seed in seeds]


def print_tails(everything: list[Family]) -> None:
    """The pooled tails of all families."""
    heads = ("level", "share", "scale", "shape", "limit", "mean")
    print(f"{'tail':<12}" + "".join(f"{head:>8}" for head in heads))
    for name, at, scale in (("norm", 1, NORM_SCALE), ("loss", 0, LOSS_SCALE)):
        scores = [
            np.concatenate([_scores(one[at], scale) for one in made]) for _, made in everything
        ]
        for side, sign, prior in (("above", 1, scale.above), ("below", -1, scale.below)):
            each = [np.maximum(sign * one, 0.0) for one in scores]
            tail = tail_of(np.concatenate(each), prior)
            limit = tail.exceeded_with(DEFAULT_BUDGET / 4)
            numbers = (tail.level, tail.share, tail.scale, tail.shape, limit)
            mean = float(np.mean([_shape(one) for one in each]))
            print(f"{name + ' ' + side:<12}" + "".join(f"{x:>8.3f}" for x in (*numbers, mean)))


def _shape(values: Floats) -> float:
    level = np.quantile(values, 1 - SHARE)
    return float(np.clip(pareto(values[values > level] - level)[1], 0.0, 0.5))


def _scores(values: Floats, scale: Scale) -> Floats:
    z = walk(values[values > 0] if scale.logarithm else values, scale, None).z
    return z[np.isfinite(z)]


def count(stream: Made) -> int:
    """Incidents in one log."""
    return len(judge(_log(stream)).incidents)


def seen(stream: Made, change: Change) -> tuple[int, int]:
    """Of some rows, each changed in a log of its own: those within an incident, and all."""
    rows = [round(share * len(stream[0])) for share in _PLACES]
    hits = 0
    for row in rows:
        changed = (stream[0].copy(), stream[1].copy())
        change(changed, row)
        hits += any(i.first_step <= row <= i.last_step for i in judge(_log(changed)).incidents)
    return hits, len(rows)


def _log(stream: Made) -> SeriesLog:
    return SeriesLog(np.arange(len(stream[0])), Column.of(stream[0]), Column.of(stream[1]))


def print_rates(everything: list[Family]) -> None:
    """False incidents and what is seen, a row for each family."""
    print(f"{'family':<28}{'rows':>8}{'false':>9}" + "".join(f"{name:>11}" for name in CHANGES))
    rows, false = 0, 0
    for name, streams in everything:
        found, length = sum(map(count, streams)), sum(len(loss) for loss, _ in streams)
        rows, false = rows + length, false + found
        shares = []
        for change in CHANGES.values():
            counts = [seen(one, change) for one in streams]
            shares.append(sum(hit for hit, _ in counts) / sum(tried for _, tried in counts))
        print(
            f"{name:<28}{length:>8}{1e4 * found / length:>9.2f}"
            + "".join(f"{share:>11.2f}" for share in shares),
            flush=True,
        )
    low, high = wilson(false, rows)
    print(
        f"all: {false} in {rows} rows, {1e4 * false / rows:.2f} per 10,000 rows "
        f"(95 %: {1e4 * low:.2f} to {1e4 * high:.2f}); the budget is {1e4 * DEFAULT_BUDGET:g}"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 5), metavar=("FIRST", "END"))
    parser.add_argument("--rows", type=int, default=2000, help="of each log")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(line(machine()), f"torch {torch.__version__}, seeds {options.seeds}", sep=", ")
    everything = list(families(range(*options.seeds), options.rows))
    print_tails(everything)
    print_rates(everything)


if __name__ == "__main__":
    main()
