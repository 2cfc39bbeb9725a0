"""What the store can take, and how quickly it answers.

    python benchmarks/store.py
    python benchmarks/store.py --parts live --seconds 300
    python benchmarks/store.py --parts write sealed --layers 200 --steps 500

The parts:

* write: rows of 2,000 layers x 1,000 steps through the writer; how many a second, bytes a row in
  segments and in seals, and what a step pays to hand its rows over.
* slowdown: of a loop of small operations and of a GPT's training, by a writer beside it. Read
  the line `bare again` first: its interval is what this machine can resolve.
* live: one process publishes a step 20 times a second and seals now and then, others ask three
  queries 5 times a second and compare every answer with what was acknowledged before they looked.
* sealed: the same queries over 2 million sealed rows.
* large: one layer of 40 million sealed rows.

Every value is computed from its step and layer: every row that an answer must have is counted,
and up to 20,000 of its values are compared. Files go to a temporary
folder and are in the system's cache when they are read: add a cold disk's time. Ends with 1 if any
answer was wrong or any row was dropped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import line, machine

PARTS = ("write", "slowdown", "live", "sealed", "large")
BARS = {"one layer": 10, "last 500 steps": 15, "top anomalies": 50}  # milliseconds


def write_part(folder: Path, args: argparse.Namespace) -> tuple[Any, int]:
    """The part "write"; leaves its run for the part "sealed"."""
    import store_writing
    from trace_rows import make_run

    run = make_run(folder / "written", args.layers)
    found = store_writing.measure(folder, run, args.layers, args.steps, args.pause / 1e3)
    store_writing.print_table(found)
    return found, 0


def slowdown_part(folder: Path, args: argparse.Namespace) -> tuple[Any, int]:
    """The part "slowdown"."""
    import store_slowdown
    import torch

    torch.set_num_threads(1)
    found = store_slowdown.measure(
        folder / "slowdown",
        args.layers,
        rounds=args.rounds,
        steps=args.block,
        operations=args.operations,
        seed=args.seed,
    )
    for loop in found:
        store_slowdown.print_table(loop)
    return found, 0


def live_part(folder: Path, args: argparse.Namespace) -> tuple[Any, int]:
    """The part "live"."""
    import store_reading

    found = store_reading.measure_live(folder, args.layers, args.seconds, args.readers)
    store_reading.print_live(found)
    return found, found["errors"] + found["writer"]["errors"] + found["writer"]["dropped"]


def sealed_part(folder: Path, args: argparse.Namespace) -> tuple[Any, int]:
    """The part "sealed"."""
    import store_reading

    run = folder / "written"
    if not run.exists():
        store_reading.write_quickly(run, args.layers, args.steps)
    found = store_reading.measure_sealed(run, args.layers, args.steps, list(BARS), args.repeats)
    store_reading.print_sealed(found, BARS)
    return found, found["errors"]


def large_part(folder: Path, args: argparse.Namespace) -> tuple[Any, int]:
    """The part "large"."""
    import store_reading

    steps = args.steps * 20
    run = store_reading.write_quickly(folder / "large", args.layers, steps)
    found = store_reading.measure_sealed(run, args.layers, steps, ["one layer"], args.repeats)
    store_reading.print_sealed(found, BARS)
    return found, found["errors"]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1000, help="20 times as many in `large`")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the part `live`")
    parser.add_argument("--readers", type=int, default=4, help="processes of the part `live`")
    parser.add_argument("--pause", type=float, default=10.0, help="ms between steps handed over")
    parser.add_argument("--rounds", type=int, default=40, help="of the part `slowdown`")
    parser.add_argument("--block", type=int, default=40, help="steps of each arm in a round")
    parser.add_argument("--operations", type=int, default=12_000, help="small ones, of a step")
    parser.add_argument("--repeats", type=int, default=50, help="of each query on sealed rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where files go for a while (temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    args = parser.parse_args(argv)
    counts = (args.layers, args.steps, args.readers, args.rounds, args.block, args.repeats)
    if min(*counts, args.operations, args.seconds) < 1 or args.pause < 0:
        parser.error("numbers must be at least 1, and --pause at least 0")
    if args.layers <= 5:
        parser.error("--layers must be at least 6")
    return args


def main() -> None:
    """Measure and print."""
    args = arguments()
    where: dict[str, Any] = {**machine(), "seed": args.seed}
    results: dict[str, Any] = {}
    failures = 0
    parts = {
        "write": write_part,
        "slowdown": slowdown_part,
        "live": live_part,
        "sealed": sealed_part,
        "large": large_part,
    }
    print(line(where))
    with tempfile.TemporaryDirectory(prefix="store-", dir=args.folder) as folder:
        for name in PARTS:
            if name in args.parts:
                results[name], failed = parts[name](Path(folder), args)
                failures += failed
    if args.json:
        report = {"machine": where, "results": results}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
