"""What healthy checkpoints look like to the statistics of `sdc-bisect`.

    python benchmarks/calibrate_checkpoints.py
    python benchmarks/calibrate_checkpoints.py --first 1000 --seeds 5 --steps 300

Small trainings of ten kinds under five optimizers. Of each the first checkpoint is that of the
untrained model, the hardest one to compare with: biases are zero and weights small. Printed are
the extremes of what `forensics.oracles.statistics` compares with its thresholds, by optimizer, and
how many checkpoints it would suspect. It suspects a weight that exceeds PEAK and GROWTH at once:
`of both` is how far one weight came towards that, 1 at the thresholds. The seeds are apart from
those of the tests (below 100).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import torch
from machine import line, machine
from small_trainings import KINDS

from forensics.measured import Measured, growth, measure
from forensics.oracles.statistics import GROWTH, PEAK, strange

Made = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Made, torch.dtype]] = {
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=3e-3), torch.float32),
    "Adam, high": (lambda p: torch.optim.Adam(p, lr=3e-2), torch.float32),
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9), torch.float32),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3), torch.float32),
    "AdamW, bfloat16": (lambda p: torch.optim.AdamW(p, lr=3e-3), torch.bfloat16),
}
EVERY = 25


def checkpoints(kind: str, optimizer: str, seed: int, steps: int) -> Iterator[dict[str, Measured]]:
    """The measured weights of each checkpoint of a training."""
    torch.manual_seed(seed)
    model, loss = KINDS[kind]()
    make, dtype = OPTIMIZERS[optimizer]
    update = make(list(model.parameters()))
    for step in range(steps + 1):
        if step % EVERY == 0:
            state = model.state_dict().items()
            yield {name: measure(tensor.to(dtype)) for name, tensor in state}
        update.zero_grad()
        loss().backward()
        update.step()


def main() -> None:
    """Print the extremes by optimizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(line(machine()))
    print(f"{'optimizer':<16} {'judged':>7} {'suspect':>7} {'peak':>8} {'growth':>8} "
          f"{'of both':>8} {'least':>9} {'zeros':>6} {'rows':>5}")  # fmt: skip
    for optimizer in OPTIMIZERS:
        print(_row(optimizer, range(asked.first, asked.first + asked.seeds), asked.steps))


def _row(optimizer: str, seeds: range, steps: int) -> str:
    judged = suspect = 0
    worst = {"peak": 0.0, "growth": 0.0, "both": 0.0, "zeros": 0.0, "rows": 0.0}
    least = math.inf
    for kind in KINDS:
        for seed in seeds:
            first: dict[str, Measured] = {}
            for now in checkpoints(kind, optimizer, seed, steps):
                first = first or now
                judged += 1
                suspect += any(strange(name, one, first[name]) for name, one in now.items())
                for name, one in now.items():
                    for key, value in _extremes(one, first[name]).items():
                        worst[key] = max(worst[key], value)
                    least = min(least, one.largest or math.inf)
    return (
        f"{optimizer:<16} {judged:>7} {suspect:>7} {worst['peak']:>8.3g} {worst['growth']:>8.3g} "
        f"{worst['both']:>8.3g} {least:>9.3g} {worst['zeros']:>6g} {worst['rows']:>5g}"
    )


def _extremes(one: Measured, first: Measured) -> dict[str, float]:
    peak = growth(one.largest, one.typical) if one.typical else 1.0
    grown = growth(one.largest, first.largest) if first.largest else 1.0
    return {
        "peak": peak,
        "growth": grown,
        "both": min(peak / PEAK, grown / GROWTH),
        "zeros": one.zero_run - first.zero_run,
        "rows": one.constant_rows - first.constant_rows,
    }


if __name__ == "__main__":
    main()
