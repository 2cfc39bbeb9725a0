"""What a guard costs a training step, beside what other ways to watch gradients cost.

    python benchmarks/hook_overhead.py --models mlp gpt-1m --rounds 60
    python benchmarks/hook_overhead.py --device cuda --seconds 300 --json overhead.json

Every arm trains its own copy of a model: same initial values, same batches, AdamW. In a round each
arm trains a block of steps, the arms in an order drawn anew, all in one process: what slows the
machine for a while slows all arms. An arm's overhead is the ratio of its block's time to the time
of `bare` in the same round, less one; printed are the median over the rounds and a 95 % bootstrap
interval of it.

How to read it: first the line `bare again`, which does the same as `bare`. Its interval is what
this machine can resolve at all; if it excludes 0, or is wider than the differences of interest,
run more rounds or quiet the machine. Two times are measured:

* wall: of the block alone. A guard's writer thread and the process that seals a trace run beside
  it: with a free core they cost nothing here, without one they do.
* process: CPU seconds of all threads of this process, and for a guard until its trace is on disk.
  So what the writer thread did for a block is counted to that block; waiting and the process that
  seals are not. Blocks of less than 40 steps and two seconds are written to disk more often than a
  run would be: with a small --steps this column is too high.

The arms: `guard` is Guard as it is by default, told loss and batch of each step; `guard,
everything` digests all of parameters and optimizer state at each step and runs a shadow pass
every 20; `guard, every digest` does the first of these alone, and `guard, overlapped` does that
with a second thread (overlap_digests), which needs a core that torch leaves free; `guard,
blocking` waits for each step's verdict (policy "halt"). `clip_grad_norm_` is
torch's with a limit that clips nothing, `norm().item() loop` a norm of each gradient as a number,
`lightning grad_norm` what Lightning offers for logging, `histograms` 64 bins of each gradient
and parameter, as experiment trackers log them; all of them at every step.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hook_models import BATCHES, TASKS, Batch, Task, loss_fn
from machine import line, machine
from torch import nn

from sdc_guard import Guard, TrainingHalted

BARE, AGAIN = "bare", "bare again"
Watcher = Callable[[nn.Module], object]  # called between backward and optimizer.step()


@dataclass
class Arm:
    """One way to train, and the seconds that its blocks took."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    watch: Watcher | None = None
    guard: Guard | None = None
    halts: int = 0
    wall: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)

    def step(self, batch: Batch) -> None:
        """One training step."""
        loss = loss_fn(self.model, batch)
        torch.autograd.backward(loss)
        if self.guard is not None:
            self.guard.observe(loss, batch)
        if self.watch is not None:
            self.watch(self.model)
        try:
            self.optimizer.step()
        except TrainingHalted:
            self.halts += 1
        self.optimizer.zero_grad()

    def block(self, batches: list[Batch], device: torch.device) -> tuple[float, float]:
        """Train on each of the batches; wall and process seconds."""
        synchronize(device)
        process, wall = time.process_time(), time.perf_counter()
        for batch in batches:
            self.step(batch)
        synchronize(device)
        wall = time.perf_counter() - wall
        if self.guard is not None:
            self.guard.flush()
        return wall, time.process_time() - process

    def close(self) -> None:
        """Detach what was attached."""
        if self.guard is not None:
            self.guard.close()


def clip(model: nn.Module) -> object:
    """Clipping that clips nothing."""
    return nn.utils.clip_grad_norm_(model.parameters(), 1e9)


def norms(model: nn.Module) -> object:
    """A norm of each gradient as a number."""
    return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]


def histograms(model: nn.Module) -> object:
    """64 bins between the extremes of each gradient and parameter."""
    tensors = [p.detach() for p in model.parameters()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    return [histogram(tensor.flatten()) for tensor in tensors]


def histogram(flat: torch.Tensor) -> list[float]:
    """One of them."""
    low, high = flat.min().item(), flat.max().item()
    counts: list[float] = flat.histc(bins=64, min=low, max=high).cpu().tolist()
    return counts


def lightning_norms() -> Watcher | None:
    """Lightning's norms of all gradients, if it is installed."""
    try:
        from lightning.pytorch.utilities import grad_norm
    except ImportError:
        return None
    return lambda model: grad_norm(model, norm_type=2)


def make_arms(task: Task, folder: Path, device: torch.device, batches: list[Batch]) -> list[Arm]:
    """Every arm, with a copy of one model."""
    original = task.make_model()

    def arm(name: str, watch: Watcher | None = None, **guard_options: Any) -> Arm:
        model = copy.deepcopy(original).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        made = Arm(name, model, optimizer, watch)
        if guard_options:
            made.guard = Guard(model, optimizer, **guard_options)
        return made

    everything: dict[str, Any] = {"shadow": (batches[0], loss_fn), "shadow_every": 20}
    everything["digest_budget"] = None
    arms = [
        arm(BARE),
        arm(AGAIN),
        arm("guard", run=folder / "default"),
        arm("guard, everything", run=folder / "everything", **everything),
        arm("guard, every digest", run=folder / "whole", digest_budget=None),
        arm(
            "guard, overlapped",
            run=folder / "overlapped",
            digest_budget=None,
            overlap_digests=True,
        ),
        arm("guard, blocking", run=folder / "blocking", policy="halt"),
        arm("clip_grad_norm_", clip),
        arm("norm().item() loop", norms),
        arm("histograms", histograms),
    ]
    if (lightning := lightning_norms()) is not None:
        arms.insert(-1, arm("lightning grad_norm", lightning))
    return arms


def synchronize(device: torch.device) -> None:
    """Wait for a device that works on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(task: Task, args: argparse.Namespace, folder: Path) -> list[Arm]:
    """Train all arms in rounds."""
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    made = [task.make_batch() for _ in range(BATCHES)]
    batches = [(inputs.to(device), targets.to(device)) for inputs, targets in made]
    steps = args.steps or task.steps
    order = random.Random(args.seed)
    arms = make_arms(task, folder, device, batches)
    if args.arms:
        left_out = [arm for arm in arms if arm.name not in (BARE, *args.arms)]
        for arm in left_out:
            arm.close()
        arms = [arm for arm in arms if arm not in left_out]
    try:
        for arm in arms:  # what is compiled, allocated and filled only once
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
    finally:
        for arm in arms:
            arm.close()
    return arms


def overhead(times: list[float], bare: list[float], rng: np.random.Generator) -> dict[str, float]:
    """Median over rounds of times/bare − 1 in percent, and its 95 % bootstrap interval."""
    ratios = 100 * (np.asarray(times) / np.asarray(bare) - 1)
    drawn = rng.integers(len(ratios), size=(4000, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    return {"percent": float(np.median(ratios)), "low": float(low), "high": float(high)}


def summary(name: str, task: Task, arms: list[Arm], args: argparse.Namespace) -> dict[str, Any]:
    """A model's results as JSON values."""
    rng = np.random.default_rng(args.seed)
    bare = next(arm for arm in arms if arm.name == BARE)
    steps = args.steps or task.steps
    parameters = list(bare.model.parameters())
    return {
        "model": name,
        "title": task.title,
        "parameters": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "rounds": len(bare.wall),
        "steps_per_round": steps,
        "bare_step_ms": 1e3 * float(np.median(bare.wall)) / steps,
        "arms": [
            {
                "arm": arm.name,
                "wall": overhead(arm.wall, bare.wall, rng),
                "process": overhead(arm.process, bare.process, rng),
                "halts": arm.halts,
            }
            for arm in arms
            if arm is not bare
        ],
    }


def described(args: argparse.Namespace) -> dict[str, Any]:
    """Where this ran."""
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    return {
        **machine(),
        "gpu": gpu,
        "torch": torch.__version__,
        "threads": args.threads,
        "seed": args.seed,
    }


def print_table(result: dict[str, Any]) -> None:
    """One model's table."""
    print(
        f"\n{result['title']}: {result['parameters'] / 1e6:.2f}M parameters,"
        f" {result['tensors']} tensors, bare step {result['bare_step_ms']:.1f} ms,"
        f" {result['rounds']} rounds of {result['steps_per_round']} steps"
    )
    print(f"{'overhead, percent':<22}{'wall':>9}{'95 %':>18}{'process':>11}{'95 %':>18}")
    for row in result["arms"]:
        cells = [
            f"{t['percent']:>+{width}.2f}{'[{low:+.2f}, {high:+.2f}]'.format(**t):>18}"
            for t, width in ((row["wall"], 9), (row["process"], 11))
        ]
        halted = f"  halted in {row['halts']} steps" if row["halts"] else ""
        print(f"{row['arm']:<22}{''.join(cells)}{halted}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="beside bare (default: all)")
    parser.add_argument("--rounds", type=int, default=40, help="at most, of each model")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most, of each model")
    parser.add_argument("--steps", type=int, help="of a block (default: by the model)")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    args = parser.parse_args(argv)
    if args.rounds < 1 or (args.steps is not None and args.steps < 1):
        parser.error("--rounds and --steps must be at least 1")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device here: use --device cpu")
    return args


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    logging.getLogger("sdc_guard").setLevel(logging.ERROR)  # an alert's text is not the subject
    where, results = described(args), []
    print(line(where))
    for name in args.models:
        with tempfile.TemporaryDirectory(prefix="hook-overhead-") as folder:
            result = summary(name, TASKS[name], measure(TASKS[name], args, Path(folder)), args)
        print_table(result)
        results.append(result)
    if args.json:
        report = {"machine": where, "results": results}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
