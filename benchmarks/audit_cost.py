"""What step audits cost: on a step that is not chosen, on one that is prepared, on one run again.

Times what the guard's audit does in its hooks, beside the time of the whole step; medians, in
milliseconds. "not chosen" is every step of a training with the policies record and warn, apart
from the few that are audited; "prepared" is every step under skip and halt, where an alert may
ask for a replay before the step is applied; "audited" is one replay and its comparison, on top.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hook_models import BATCHES, TASKS, Task, loss_fn
from machine import line, machine

from sdc_guard import Guard
from sdc_guard.checks.audit.forward_hook import ForwardHook
from sdc_guard.checks.audit.step_audit import StepAudit

_METHODS = ("_forward_begins", "observed", "backward_ended", "step_begins", "judged", "step_ended")


class TimedAudit(StepAudit):
    """Adds up the time that it takes in a step."""

    spent = 0.0

    def take(self) -> float:
        """Seconds since the last call."""
        spent, self.spent = self.spent, 0.0
        return spent


def _timed(name: str) -> Callable[..., Any]:
    method = getattr(StepAudit, name)

    def timed(self: TimedAudit, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(self, *arguments)
        finally:
            self.spent += time.perf_counter() - started

    return timed


for _name in _METHODS:
    setattr(TimedAudit, _name, _timed(_name))


def measure(task: Task, steps: int, rate: float, policy: Any) -> tuple[float, float]:
    """Median seconds of a step without the audit's part, and of that part."""
    torch.manual_seed(0)
    model = task.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [task.make_batch() for _ in range(BATCHES)]
    step_times, audit_times = [], []
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(
            model, optimizer, run=Path(folder) / "run", policy=policy, audit=loss_fn,
            audit_rate=rate, probe_every=None,
        )  # fmt: skip
        (audit,) = (check for check in guard._checks._checks if isinstance(check, StepAudit))
        audit.__class__ = TimedAudit
        assert isinstance(audit, TimedAudit)
        audit._hook.remove()  # it holds the method that it was given
        audit._hook = ForwardHook(audit._subject.model, audit._forward_begins)
        with guard:
            for step in range(steps):
                batch = batches[step % BATCHES]
                started = time.perf_counter()
                loss = loss_fn(model, batch)
                loss.backward()
                guard.observe(loss, batch)
                optimizer.step()
                optimizer.zero_grad()
                whole, part = time.perf_counter() - started, audit.take()
                if step > 5:  # after the first look and the calibration
                    step_times.append(whole - part)
                    audit_times.append(part)
    return statistics.median(step_times), statistics.median(audit_times)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["mlp", "gpt-1m", "resnet"], choices=TASKS)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(line(machine() | {"torch": torch.__version__}))
    print("| model | step, ms | not chosen, ms | prepared, ms | audited, ms |")
    print("|---|---|---|---|---|")
    for name in arguments.tasks:
        task = TASKS[name]
        step, idle = measure(task, arguments.steps, 1e-9, "record")
        _, prepared = measure(task, arguments.steps, 1e-9, "skip")
        _, audited = measure(task, arguments.steps, 1.0, "record")
        cells = [1e3 * x for x in (step, idle, prepared, audited)]
        print(f"| {task.title} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
