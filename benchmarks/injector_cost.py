"""What an injector costs a training step while none of its faults is due.

    python benchmarks/injector_cost.py --models gpt-1m --rounds 40

As in `hook_overhead.py`: every arm trains its own copy of a model, in rounds of a block of steps
each, in an order drawn anew, all in one process. Printed are the median over the rounds of an
arm's time over that of `bare`, less one, and a 95 % bootstrap interval. `bare again` does the same
as `bare`: its interval is what this machine can resolve.

Each site's arm has one fault of that site, far in the future; `all sites` has one of each, and
`100 faults` that many of weights and outputs.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import time
from pathlib import Path
from typing import Any, Final

import torch
from hook_models import BATCHES, TASKS, Batch, Task
from hook_overhead import AGAIN, BARE, Arm, arguments, described, print_table, summary
from machine import line

from sdc_guard.inject.fault import Fault, Site
from sdc_guard.inject.injector import Injector

NEVER: Final = 10**9
ALONE: Final[tuple[Site, ...]] = (
    "weight", "buffer", "exp_avg", "exp_avg_sq", "step", "gradient", "reduced_gradient",
    "activation", "output_gradient", "batch",
)  # fmt: skip


def plans(model: torch.nn.Module) -> dict[str, list[Fault]]:
    """Arm to faults; of buffers only where the model has some."""
    sites = [site for site in ALONE if site != "buffer" or any(True for _ in model.buffers())]
    each = {site: [Fault(site, NEVER)] for site in sites}
    many = [Fault("weight", NEVER + n) for n in range(50)]
    many += [Fault("activation", NEVER + n) for n in range(50)]
    return {**each, "all sites": [Fault(site, NEVER) for site in sites], "100 faults": many}


def make_arms(task: Task, device: torch.device) -> tuple[list[Arm], list[Injector]]:
    """Every arm, with a copy of one model."""
    original = task.make_model()
    arms, injectors = [], []
    for name, faults in {BARE: [], AGAIN: [], **plans(original)}.items():
        model = copy.deepcopy(original).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        arms.append(Arm(name, model, optimizer))
        if faults:
            injector = Injector(model, optimizer, seed=0)
            injectors.append(injector)
            for fault in faults:
                injector.add(fault)
    return arms, injectors


def measure(task: Task, args: argparse.Namespace) -> list[Arm]:
    """Train all arms in rounds."""
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    made = [task.make_batch() for _ in range(BATCHES)]
    batches: list[Batch] = [(inputs.to(device), targets.to(device)) for inputs, targets in made]
    steps, order = args.steps or task.steps, random.Random(args.seed)
    arms, injectors = make_arms(task, device)
    if args.arms:
        arms = [arm for arm in arms if arm.name in (BARE, *args.arms)]
    for arm in arms:  # what is allocated and filled only once
        arm.block([batches[i % BATCHES] for i in range(max(3, steps))], device)
    end = time.monotonic() + args.seconds
    for number in range(args.rounds):
        part = [batches[(number * steps + i) % BATCHES] for i in range(steps)]
        for arm in order.sample(arms, len(arms)):
            wall, process = arm.block(part, device)
            arm.wall.append(wall)
            arm.process.append(process)
        if time.monotonic() > end:
            break
    assert not any(injector.records for injector in injectors)
    return arms


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    logging.getLogger("sdc_guard").setLevel(logging.ERROR)
    where = described(args)
    results: list[dict[str, Any]] = []
    print(line(where))
    for name in args.models:
        results.append(summary(name, TASKS[name], measure(TASKS[name], args), args))
        print_table(results[-1])
    if args.json:
        report = {"machine": where, "results": results}
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
