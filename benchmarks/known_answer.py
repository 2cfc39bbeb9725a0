"""What the known answer costs the training's thread: a question, its judging, and all other steps.

    python benchmarks/known_answer.py [--threads 1]

Wall time of the thread that trains. On a device it is the time to queue the work, and not the time
that the device takes for it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from machine import line, machine

from sdc_guard.checks.answers.known_answer import KnownAnswer
from sdc_guard.detect.alert import Alert
from sdc_guard.ranks import Ranks

_EVERY = 10
_QUESTIONS = 300


class Silent:
    """Takes what the check tells."""

    def report(self, alerts: list[Alert]) -> None:
        print(*alerts, sep="\n")

    def event(self, step: int, kind: str, detail: str) -> None:
        del step, kind, detail


def measure(device: torch.device, run: Path) -> dict[str, float]:
    """Milliseconds: of the first step, of a step with a question, and of one without."""
    model = torch.nn.Linear(3, 3, device=device)
    check = KnownAnswer(Silent(), model, Ranks(run), run, _EVERY)
    asked, others = [], []
    for step in range(_EVERY * _QUESTIONS):
        started = time.perf_counter()
        check.step_ended(step)
        took = 1e3 * (time.perf_counter() - started)
        (others if step % _EVERY else asked).append(took)
    check.close()
    first, *rest = asked
    rest.sort()
    return {
        "first step": first,
        "question, median": statistics.median(rest),
        "question, 99 %": rest[int(0.99 * len(rest))],
        "other steps, median": statistics.median(others),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of torch (%(default)s)")
    torch.set_num_threads(parser.parse_args().threads)
    print(line(machine() | {"torch": torch.__version__, "threads": torch.get_num_threads()}))
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    print("| device | what | ms |\n|---|---|---|")
    for device in devices:
        with tempfile.TemporaryDirectory() as folder:
            for what, took in measure(torch.device(device), Path(folder)).items():
                print(f"| {device} | {what} | {took:.4f} |")


if __name__ == "__main__":
    main()
