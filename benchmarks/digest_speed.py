"""Bytes a second that one core fingerprints: the digest beside torch.hash_tensor, xxh3 and a sum.

    python benchmarks/digest_speed.py
    python benchmarks/digest_speed.py --mb 8 --rounds 50 --json speed.json
    python benchmarks/digest_speed.py --device cuda

All arms read the same random bytes, in one process and one thread. In a round each arm runs once,
in an order drawn anew, so that what slows the machine for a while slows all arms. Printed are GB
(10^9 bytes) a second, the median and the best of the rounds, and the median of the ratios to
torch.hash_tensor over float32 in the same round. The digest takes all three sums: H, S1 and S2.

How to read it: a sum reads as fast as memory gives. The digest's work is per element and not per
byte: below four bytes an element, that is what limits it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xxhash
from machine import line, machine

from sdc_guard.digest import digest_rows

BASE = "hash_tensor float32"
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
Arms = dict[str, Callable[[], object]]


def arms(content: torch.Tensor) -> Arms:
    """What is measured, by name, over one-dimensional bytes."""
    found: Arms = {}
    for name, dtype in DTYPES.items():
        found[f"digest {name}"] = partial(digest_rows, [content.view(dtype)])
    matrix = content.view(torch.float32).reshape(-1, 1 << 12)
    found["digest float32, transposed"] = partial(digest_rows, [matrix.t()])
    if hasattr(torch, "hash_tensor"):
        for name in ("float32", "bfloat16"):
            viewed = content.view(DTYPES[name])
            found[f"hash_tensor {name}"] = partial(torch.hash_tensor, viewed)
    if content.device.type == "cpu":
        found["xxh3"] = partial(xxhash.xxh3_64_intdigest, content.numpy())
    found["sum float32"] = matrix.sum
    found["sum int64"] = content.view(torch.int64).sum
    return found


def rounds(measured: Arms, count: int, seed: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each arm in each round; two rounds before these warm up."""
    order, draw = list(measured), random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(-2, count):
        draw.shuffle(order)
        for name in order:
            taken = timed(measured[name], device)
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds that an action takes, on a device until it has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def results(seconds: dict[str, list[float]], size: int) -> dict[str, dict[str, float]]:
    """GB/s and ratios of each arm."""
    found = {}
    for name, taken in seconds.items():
        row = {
            "median": size / float(np.median(taken)) / 1e9,
            "best": size / min(taken) / 1e9,
        }
        if BASE in seconds:
            row["ratio"] = float(np.median(np.array(seconds[BASE]) / np.array(taken)))
        found[name] = row
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=64, help="2^20 bytes that each arm reads")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(options.seed)
    size = options.mb << 20
    content = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).to(device)
    here = machine() | {"torch": torch.__version__, "device": str(device), "mb": options.mb}
    print(line(here))
    measured = results(rounds(arms(content), options.rounds, options.seed, device), size)
    print(f"{'':<28}{'GB/s':>8}{'best':>8}{'x ' + BASE:>24}")
    for name, row in measured.items():
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
        print(f"{name:<28}{row['median']:>8.1f}{row['best']:>8.1f}{ratio:>24}")
    if options.json:
        told = {"machine": here, "results": measured}
        options.json.write_text(json.dumps(told, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
