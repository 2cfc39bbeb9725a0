"""What a writer beside it costs a loop: the same loop with it and without, a block of each in turn.

The writer gets one step's rows of each step. What it does for them runs in its thread, so a loop
of small operations pays whenever the interpreter's lock is taken from it, and any loop pays where
no core is free. A block begins right after a flush and half a flush's rows later: so each
20 steps of a block have their flush within the block, as in a long run.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hook_models import BATCHES, TASKS, loss_fn
from hook_overhead import overhead
from store_writing import append, finished
from trace_rows import layer_columns, step_columns

from sdc_guard.store.health import Health
from sdc_guard.store.writer import FLUSH_STEPS, Writer

BARE, AGAIN = "bare", "bare again"
Step = Callable[[int], object]  # called with the number of the step
_PREPARED = 64  # steps' rows made beforehand and handed over in turn


@dataclass
class Arm:
    """A way to run the loop: with no writer, or with one that gets rows of so many layers."""

    name: str
    layers: int = 0
    writer: Writer | None = None
    health: Health = field(default_factory=Health)
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    given: int = 0

    def start(self, folder: Path) -> None:
        """Make the writer and its rows."""
        if self.layers:
            run = folder / f"rows-of-{self.layers}"
            run.mkdir(parents=True)
            self.writer = Writer(run, 0, self.health)
            self.rows = [
                (layer_columns([n], self.layers), step_columns([n])) for n in range(_PREPARED)
            ]

    def give(self) -> None:
        """Hand over the rows of one step."""
        if self.writer is not None:
            append(self.writer, *self.rows[self.given % _PREPARED])
            self.given += 1

    def block(self, step: Step, steps: int) -> float:
        """Seconds of so many steps."""
        self.settle()
        for _ in range(FLUSH_STEPS // 2):
            self.give()
        start = time.perf_counter()
        for number in range(steps):
            step(number)
            self.give()
        seconds = time.perf_counter() - start
        self.settle()
        return seconds

    def settle(self) -> None:
        """Have everything published, so that no other arm pays for it."""
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        """End the writer."""
        if self.writer is not None:
            finished(self.writer, self.health)


def small_operations(operations: int) -> Step:
    """A step of many tiny operations, half of NumPy and half of torch."""
    array, tensor = np.ones(64), torch.ones(64)

    def step(_: int) -> object:
        nonlocal array, tensor
        for _ in range(operations // 2):
            array = array * 0.5 + 0.5
            tensor = tensor * 0.5 + 0.5
        return array, tensor

    return step


def training(name: str, seed: int) -> tuple[Step, int]:
    """A training step of a model of `hook_models`, and how many tensors it has."""
    torch.manual_seed(seed)
    task = TASKS[name]
    model = task.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [task.make_batch() for _ in range(BATCHES)]

    def step(number: int) -> object:
        torch.autograd.backward(loss_fn(model, batches[number % BATCHES]))
        optimizer.step()
        optimizer.zero_grad()
        return None

    return step, len(list(model.parameters()))


def compare(
    title: str, step: Step, layers: list[int], folder: Path, *, rounds: int, steps: int, seed: int
) -> dict[str, Any]:
    """Run the loop in rounds, bare and with writers that get rows of so many layers."""
    arms = [Arm(BARE), Arm(AGAIN)]
    arms += [Arm(f"writer, {count:,} layers", count) for count in layers]
    order, rng = random.Random(seed), np.random.default_rng(seed)
    with contextlib.ExitStack() as ends:
        for arm in arms:
            arm.start(folder)
            ends.callback(arm.close)
            arm.block(step, min(steps, 5))  # what happens only once
        for _ in range(rounds):
            for arm in order.sample(arms, len(arms)):
                arm.seconds.append(arm.block(step, steps))
    bare = arms[0].seconds
    return {
        "loop": title,
        "rounds": rounds,
        "steps_per_round": steps,
        "bare_step_ms": 1e3 * float(np.median(bare)) / steps,
        "arms": [{"arm": arm.name, **overhead(arm.seconds, bare, rng)} for arm in arms[1:]],
    }


def measure(
    folder: Path, layers: int, *, rounds: int, steps: int, operations: int, seed: int
) -> list[dict[str, Any]]:
    """Both loops."""
    small = small_operations(operations)
    step, tensors = training("gpt-1m", seed)
    options: dict[str, int] = {"rounds": rounds, "steps": steps, "seed": seed}
    found = []
    for title, loop in (("small operations", small), (TASKS["gpt-1m"].title, step)):
        counts = sorted({min(tensors, layers), layers})
        found.append(compare(title, loop, counts, folder / title, **options))
    return found


def print_table(found: dict[str, Any]) -> None:
    """One loop's."""
    print(
        f"\n{found['loop']}: bare step {found['bare_step_ms']:.1f} ms,"
        f" {found['rounds']} rounds of {found['steps_per_round']} steps"
    )
    print(f"{'slowdown, percent':<22}{'wall':>9}{'95 %':>18}")
    for row in found["arms"]:
        interval = f"[{row['low']:+.2f}, {row['high']:+.2f}]"
        print(f"{row['arm']:<22}{row['percent']:>+9.2f}{interval:>18}")
