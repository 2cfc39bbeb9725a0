"""How long a commit of a lake takes, with several uploaders at once.

    PYTHONPATH=.venv/lake python benchmarks/lake_commits.py \\
        --catalog postgres:"dbname=sdc host=/tmp" --data /tmp/lake --uploaders 4 --commits 50

Each uploader is a process with a rank of its own, eight apart as on nodes of eight, or with
--same all of them have the same rank. A commit holds a segment of layers and its record. A lake
keeps its data in one place: give a new database or the same --data again.

How to read it: `commit` is one transaction, from its start to the catalog's answer; `conflicts`
are transactions that had to be done again because another uploader of the same ranks was faster;
`lost` and `doubled` compare the lake's rows with those written, and must be 0.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import line, machine

from sdc_guard.lake import uploader
from sdc_guard.lake.location import Lake
from sdc_guard.store.opening import open_run
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.writer import Health, Writer

_RANKS_APART = 8


def record(run: Path, ranks: list[int], segments: int, rows: int) -> None:
    """A run with so many segments of layers for each rank."""
    run.mkdir()
    layers = (Layer(0, "w", (), (1,), "float32", 1),)
    RunFile(run.name, max(ranks) + 1, layers, (Attempt(1, 0, time.time()),)).write(run)
    layer = np.arange(rows, dtype=np.int32)
    for rank in ranks:
        random = np.random.default_rng(rank)
        writer = Writer(run, rank, Health())
        for step in range(segments):
            norm = random.standard_normal(rows)
            writer.append("layers", attempt=1, step=step, layer=layer, norm=norm, scope="local")
            assert writer.flush()
        writer.close()


def upload(run: Path, lake: Lake, ranks: set[int]) -> None:
    """Upload these ranks with a segment a commit; print the time of each, in seconds."""
    commit = uploader.commit

    def timed(*arguments, **options):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        try:
            done = commit(*arguments, **options)
        except Exception:  # whatever it is: it is printed, and raised on
            print("conflict", flush=True)
            raise
        if done.records:
            print(time.perf_counter() - start, flush=True)
        return done

    uploader.commit = timed
    uploader.Uploader(run, lake, ranks, most_pieces=1).upload()


def main() -> None:
    """Run the uploaders and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--uploaders", type=int, default=4)
    parser.add_argument("--commits", type=int, default=50, help="of each uploader")
    parser.add_argument("--rows", type=int, default=40_000, help="of each commit")
    parser.add_argument("--same", action="store_true", help="all uploaders have the same rank")
    parser.add_argument("--upload", nargs=2, metavar=("RUN", "RANK"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    lake = Lake.of(asked.catalog, asked.data)
    if asked.upload:
        upload(Path(asked.upload[0]), lake, {int(asked.upload[1])})
        return
    ranks = [0 if asked.same else _RANKS_APART * n for n in range(asked.uploaders)]
    folder = Path(tempfile.mkdtemp(prefix="lake-commits-"))
    run = folder / f"commits-{os.getpid()}"
    record(run, sorted(set(ranks)), asked.commits, asked.rows)
    start = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--upload", str(run), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    lines = [row for process in processes for row in process.communicate()[0].splitlines()]
    seconds = time.perf_counter() - start
    assert not any(process.returncode for process in processes)
    with open_run(f"ducklake:{asked.catalog}?run={run.name}") as reader:
        total, distinct = reader.rows(
            "SELECT count(*), count(DISTINCT (rank, step, layer)) FROM layers"
        )[0]
    shutil.rmtree(folder)
    times = np.array([float(row) for row in lines if row != "conflict"])
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
    written = len(set(ranks)) * asked.commits * asked.rows
    print(line(machine()) + "\n")
    print(
        "| uploaders | commits | rows each | commit p50/p99 ms | conflicts | lost | doubled | s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {asked.uploaders}{' of one rank' if asked.same else ''} | {len(times)} | {asked.rows:,}"
        f" | {p50:.0f}/{p99:.0f} | {lines.count('conflict')} | {written - distinct}"
        f" | {total - distinct} | {seconds:.1f} |"
    )


if __name__ == "__main__":
    main()
