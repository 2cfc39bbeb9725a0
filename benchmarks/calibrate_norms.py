"""The tails of the sensor's scores in healthy runs, and what its thresholds then do in others.

    for seed in $(seq 100 111); do
        python sample_runs/tiny_gpt.py --steps 600 --seed $seed --run runs/healthy/$seed
    done
    python benchmarks/calibrate_norms.py tails runs/healthy/10[0-6]
    python benchmarks/calibrate_norms.py judge runs/healthy/10[7-9] runs/healthy/11?
    python benchmarks/calibrate_norms.py tails --small 300 301 302
    python benchmarks/calibrate_norms.py judge --small 310 311 312

`--small` takes the trainings of small_trainings.py with these seeds instead of recorded runs.
`tails` prints what stands in sdc_guard/detect/tails.py. `judge` has a sensor with these tails judge
each run from its first step, and counts alerts and incidents, with Wilson's interval of 95 % of
their rate. Judge other seeds than those that the tails were fitted to.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import small_trainings
import torch

from sdc_guard import Alert, RunReader
from sdc_guard.detect.incidents import QUIET_STEPS
from sdc_guard.detect.peaks import Tail, pareto
from sdc_guard.detect.proportion import wilson
from sdc_guard.detect.sensor import FALSE_INCIDENTS, STATISTICS, StepSensor
from sdc_guard.detect.step_signals import StepSignals

# of single streams' scores: so that a few hundred are peaks, where there is one stream or 52
SHARES = {"norm": 1e-3, "peak": 1e-3, "zeros": 1e-3, "shift": 1e-3, "total": 0.05, "loss": 0.05}

Step = tuple[int, StepSignals, float | None]


def recorded(run: Path) -> tuple[np.ndarray, Iterator[Step]]:
    """Elements of each layer, and the steps of a run on one rank."""
    with RunReader(run) as reader:
        columns = "norm, max_abs, zeros, nonfinite"
        rows = np.array(
            reader.rows(f"SELECT step, layer, {columns} FROM layers ORDER BY step, layer"),
            dtype=np.float64,
        )
        losses = dict(reader.rows("SELECT step, loss FROM steps"))
        numel = np.array([layer.numel for layer in reader.run_file.layers])
    by_step = rows.reshape(-1, len(numel), rows.shape[1])

    def steps() -> Iterator[Step]:
        for part in by_step:
            norm, peak, zeros, bad = part[:, 2:].T
            signals = StepSignals(norm, peak, zeros.astype(np.int64), bad.astype(np.int64))
            yield int(part[0, 0]), signals, losses.get(int(part[0, 0]))

    return numel, steps()


@dataclass(frozen=True)
class Source:
    """A recorded run, or a small training."""

    name: str
    read: Callable[[], tuple[np.ndarray, Iterable[Step]]]


def of_run(path: Path) -> Source:
    """The run in a folder."""
    return Source(path.name, lambda: recorded(path))


def of_training(kind: str, seed: int, steps: int) -> Source:
    """One of `small_trainings.KINDS`."""

    def read() -> tuple[np.ndarray, Iterable[Step]]:
        numel, found = small_trainings.recorded(kind, seed, steps)
        return numel, [(step, signals, loss) for step, (signals, loss) in enumerate(found)]

    return Source(f"{kind} {seed}", read)


def scores_of(run: Source) -> dict[str, np.ndarray]:
    """|score| of every stream and step that is judged, by statistic; of the loss, only upwards."""
    numel, steps = run.read()
    sensor = StepSensor([str(layer) for layer in range(len(numel))], numel, false_incidents=None)
    found: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}
    for step, signals, loss in steps:
        scores = sensor.scores(signals, loss)
        for name in STATISTICS:
            of_step = np.atleast_1d(getattr(scores, name))
            found[name].append(np.maximum(of_step, 0) if name == "loss" else np.abs(of_step))
        sensor.judge(step, signals, loss)
    flat = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: values[np.isfinite(values)] for name, values in flat.items()}


def print_tails(runs: list[Source]) -> None:
    """The tail of each statistic over all runs, and the largest score of each run."""
    by_run = [scores_of(run) for run in runs]
    print(f"{'statistic':<10}{'values':>9}  tail; largest score of each run")
    for name in STATISTICS:
        values = np.concatenate([scores[name] for scores in by_run])
        level = float(np.quantile(values, 1 - SHARES[name]))
        peaks = values[values > level] - level
        scale, shape = pareto(peaks)
        tail = Tail(level, len(peaks) / len(values), scale, shape)
        most = " ".join(f"{scores[name].max(initial=0):.1f}" for scores in by_run)
        print(f"{name:<10}{len(values):>9}  {tail}; {most}")


def judged(run: Source, budget: float) -> tuple[int, list[Alert]]:
    """Steps of a run, and the alerts that a fresh sensor raises."""
    numel, steps = run.read()
    names = [str(layer) for layer in range(len(numel))]
    sensor = StepSensor(names, numel, false_incidents=budget)
    alerts: list[Alert] = []
    count = 0
    for step, signals, loss in steps:
        alerts += sensor.judge(step, signals, loss)
        count += 1
    return count, alerts


def print_false_incidents(runs: list[Source], budget: float) -> None:
    """Alerts and incidents of each run, and their rate over all of them."""
    print(f"{'run':<24}{'steps':>8}{'alerts':>8}{'incidents':>10}  by")
    total = incidents = 0
    for run in runs:
        count, alerts = judged(run, budget)
        steps = np.unique([alert.step for alert in alerts])
        opened = 0 if not len(steps) else 1 + int((np.diff(steps) > QUIET_STEPS).sum())
        by = sorted({alert.detector for alert in alerts})
        print(f"{run.name:<24}{count:>8}{len(alerts):>8}{opened:>10}  {', '.join(by)}")
        total, incidents = total + count, incidents + opened
    low, high = wilson(incidents, total)
    print(
        f"{incidents} incidents in {total} steps: {low:.2g} to {high:.2g} a step; budget {budget}"
    )


def main() -> None:
    """Print a table over the runs named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["tails", "judge"])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--small", nargs="*", type=int, default=[], metavar="SEED")
    parser.add_argument("--steps", type=int, default=600, help="of each small training")
    parser.add_argument("--budget", type=float, default=FALSE_INCIDENTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = [of_run(run) for run in given.runs]
    runs += [of_training(k, s, given.steps) for k in small_trainings.KINDS for s in given.small]
    if not runs:
        parser.error("name runs, or seeds after --small")
    print(f"{platform.machine()}, numpy {np.__version__}")
    if given.what == "tails":
        print_tails(runs)
    else:
        print_false_incidents(runs, given.budget)


if __name__ == "__main__":
    main()
