"""What a guard costs a training step, resolved to about a tenth of a percent of it.

    python benchmarks/step_overhead.py --models gpt-1m gpt-21m --seconds 600

`hook_overhead.py` compares blocks of seconds, and from one of these to the next a machine changes
by more than a guard costs. Here the arms of it take turns every few steps, in an order drawn anew
in each round. A turn is three steps after one that is not counted, as the caches hold another arm's
tensors then; or a single step where that takes a tenth of a second and more. An arm's cost is the
difference of its turn's time to that of the two bare arms of the same round, as a part of a bare
step. Of the differences the outermost hundredths count as the next ones (a winsorised mean): a step
that was interrupted is no cost, while the steps at which a guard judges what has gathered, one in
sixteen or so, are. The interval is a 95 % bootstrap over rounds. The last line is the difference of
two arms in the same rounds.

Two times are measured: wall, and the CPU seconds of the training's own thread. `beside` is what
the guard's threads took meanwhile on another core, at most: they publish every two seconds, which
here are fewer steps than in a training by itself. Evidence waits to be judged for as many steps as
it would there.

It overstates a little: all arms share the processor's caches.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from hook_models import BATCHES, TASKS, Batch, Task
from hook_overhead import AGAIN, BARE, Arm, make_arms
from machine import line, machine
from numpy.typing import NDArray

import sdc_guard.pending

CLIP: Final = "clip_grad_norm_"
ARMS: Final = (BARE, AGAIN, "guard", CLIP)
_PULLED_IN: Final = 0.01  # of the differences, at either end
_ROUNDS_FIRST: Final = 10  # that are not counted: what is compiled, allocated and learnt once
_LONG: Final = 0.1  # seconds of a step, beside which it is nothing to fill the caches
Floats = NDArray[np.float64]


@dataclass
class Turns:
    """Seconds of the counted steps of an arm's turns."""

    arm: Arm
    first: int = 1  # steps that are not counted
    counted: int = 3
    wall: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)


def winsorised(differences: Floats) -> float:
    """Mean, with the outermost hundredths at either end pulled in to the next ones."""
    low, high = np.quantile(differences, [_PULLED_IN, 1 - _PULLED_IN])
    return float(np.clip(differences, low, high).mean())


def cost(times: Floats, bare: Floats, again: Floats, rng: np.random.Generator) -> dict[str, float]:
    """How much longer turns took than bare ones, in percent, and its 95 % interval.

    Args:
        times: seconds of the arm's turn in each round.
        bare: likewise, of bare training.
        again: likewise, of another one, or `bare` to compare the two.
        rng: of the bootstrap.
    """
    whole = float(np.median(bare))
    differences = 100 * (times - (bare + again) / 2) / whole
    drawn = rng.integers(len(differences), size=(1000, len(differences)))
    low, high = np.quantile([winsorised(differences[row]) for row in drawn], [0.025, 0.975])
    return {"percent": winsorised(differences), "low": float(low), "high": float(high)}


def turns_of(arms: list[Arm], batch: Batch, steps: int | None) -> list[Turns]:
    """The turns of each arm, as long as a step of the first one asks for."""
    for _ in range(2):
        began = time.perf_counter()
        arms[0].step(batch)
        took = time.perf_counter() - began
    first, counted = (0, 1) if took >= _LONG else (1, 3)
    return [Turns(arm, first, steps or counted) for arm in arms]


def measure(task: Task, args: argparse.Namespace, folder: Path) -> tuple[list[Turns], float]:
    """Train all arms in turns; also the seconds that threads beside took for each guarded step."""
    torch.manual_seed(args.seed)
    batches = [task.make_batch() for _ in range(BATCHES)]
    arms = make_arms(task, folder, torch.device("cpu"), batches)
    turns = turns_of([arm for arm in arms if arm.name in ARMS], batches[0], args.steps)
    first, counted_steps = turns[0].first, turns[0].counted
    for arm in arms:
        if arm.name not in ARMS:
            arm.close()
    # each arm has a part of the time
    waits, sdc_guard.pending.JUDGE_SECONDS = (
        sdc_guard.pending.JUDGE_SECONDS,
        sdc_guard.pending.JUDGE_SECONDS * len(turns),
    )
    order, turning = random.Random(args.seed), itertools.cycle(batches)
    end, before, counted = 0.0, 0.0, 0
    try:
        for number in itertools.count():
            if number == _ROUNDS_FIRST:
                end, before = time.monotonic() + args.seconds, _beside()
            drawn = [next(turning) for _ in range(first + counted_steps)]
            for turn in order.sample(turns, len(turns)):
                for batch in drawn[:first]:
                    turn.arm.step(batch)
                wall, thread = time.perf_counter(), time.thread_time()
                for batch in drawn[first:]:
                    turn.arm.step(batch)
                if number >= _ROUNDS_FIRST:
                    turn.wall.append(time.perf_counter() - wall)
                    turn.thread.append(time.thread_time() - thread)
            if number >= _ROUNDS_FIRST:
                counted += len(drawn)
                if time.monotonic() > end:
                    break
        return turns, (_beside() - before) / counted
    finally:
        sdc_guard.pending.JUDGE_SECONDS = waits
        for turn in turns:
            turn.arm.close()


def _beside() -> float:
    """CPU seconds of the guard's own threads so far."""
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.name.startswith("sdc-guard") and thread.ident is not None
    ]
    return sum(time.clock_gettime(clock) for clock in clocks)


def print_table(name: str, args: argparse.Namespace, folder: Path) -> None:
    """Measure one model, and print what was found."""
    task = TASKS[name]
    turns, beside = measure(task, args, folder)
    rng = np.random.default_rng(args.seed)
    held: dict[str, Any] = {turn.arm.name: turn for turn in turns}
    bare, again = held[BARE], held[AGAIN]
    step = float(np.median(bare.wall)) / bare.counted
    print(
        f"\n{task.title}: bare step {1e3 * step:.1f} ms, {len(bare.wall)} rounds, turns of"
        f" {bare.counted} steps; beside the guard's: {1e6 * beside:.0f} µs a step"
        f" ({100 * beside / step:.2f} %)"
    )
    print(f"{'cost, percent':<18}{'wall':>8}{'95 %':>18}{'thread':>10}{'95 %':>18}")
    rows = [(AGAIN, again, bare, bare)]
    rows += [(name, held[name], bare, again) for name in ("guard", CLIP)]
    rows += [("guard less clip", held["guard"], held[CLIP], held[CLIP])]
    for name, *compared in rows:
        cells = []
        for times in ("wall", "thread"):
            mine, *others = (np.array(getattr(one, times)) for one in compared)
            found = cost(mine, *others, rng)
            cells.append(
                f"{found['percent']:>+8.2f}{'[{low:+.2f}, {high:+.2f}]'.format(**found):>18}"
            )
        print(f"{name:<18}{'  '.join(cells)}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=["gpt-1m"])
    parser.add_argument("--seconds", type=float, default=300.0, help="of each model")
    parser.add_argument(
        "--steps", type=int, help="of a turn that are counted (default: by the model)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.steps is not None and args.steps < 1:
        parser.error("--steps must be at least 1")
    return args


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    logging.getLogger("sdc_guard").setLevel(logging.ERROR)  # an alert's text is not the subject
    print(line({**machine(), "torch": torch.__version__, "threads": args.threads}))
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="step-overhead-") as folder:
            print_table(name, args, Path(folder))


if __name__ == "__main__":
    main()
