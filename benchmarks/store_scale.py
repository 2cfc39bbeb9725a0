"""A trace of a thousand ranks: its files, its bytes, and which rank is odd.

    python benchmarks/store_scale.py
    python benchmarks/store_scale.py --ranks 64 --layers 20 --steps 40 --profile

Writes the segments that so many ranks would have written, a flush every 20 steps, in the layout
of a run but without waiting for the disk. One rank's gradients of one layer, drawn by the seed,
are half as large again as they should be, at every step. Then it asks, of a window of 100 steps:
which rank and which layer are odd among their peers? For every layer and step the logarithm of
the norm is compared with all ranks' median, in units of their spread (the distance between the
quartiles, as a normal distribution has it), and the window's values of a rank and layer are added
up. The answer must be the hidden one.

It is asked three times:

* direct: DuckDB reads the segments as a list of files, the rank comes from the folder's name, and
  nothing is checked. This is as quick as the layout allows.
* reader: `RunReader`, which leaves out damaged files and rows that a resume superseded.
* sealed: `RunReader` after the segments were folded into seals (with `--seal`).

Files are in the system's cache when they are read. The column CPU is of all threads: on a busy
machine it says more than the others. A way that takes longer than `--limit` is given
up. With few ranks or steps chance may be odder than what is hidden: then the answer is another one.
Ends with 1 if it was.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from machine import line, machine
from store_reading import arrow
from trace_rows import digest_columns, layer_columns, make_run, step_columns

from sdc_guard import RunReader
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import listing, quoted, rank_folder, ranks, segment_path
from sdc_guard.store.writer import FLUSH_STEPS

WINDOW: Final = 100  # steps
BAR: Final = 5.0  # seconds
ODD: Final = 1.5  # times as large

# 0.7413 of the distance between the quartiles is a normal distribution's standard deviation.
# materialized, because the files would be read twice otherwise
QUERY: Final = """
    WITH sizes AS MATERIALIZED (
        SELECT rank, step, layer, ln(norm) AS size FROM {source}
        WHERE step >= {first} AND step < {end} AND norm > 0 AND isfinite(norm)
    ), peers AS (
        SELECT step, layer, quantile_cont(size, [0.25, 0.5, 0.75]) AS quartile
        FROM sizes GROUP BY step, layer
    )
    SELECT rank, layer,
        sum((size - quartile[2]) / (0.7413 * (quartile[3] - quartile[1]))) / sqrt(count(*)) AS z
    FROM sizes JOIN peers USING (step, layer) WHERE quartile[3] > quartile[1]
    GROUP BY rank, layer ORDER BY abs(z) DESC LIMIT 2
"""


def hidden(ranks_: int, layers: int, seed: int) -> tuple[int, int]:
    """The rank and the layer that are odd."""
    rng = np.random.default_rng(seed)
    return int(rng.integers(ranks_)), int(rng.integers(layers))


def write(run: Path, world_size: int, layers: int, steps: int, odd: tuple[int, int]) -> None:
    """The segments of all ranks."""
    make_run(run, layers, world_size)
    for rank in range(world_size):
        folders = {table: rank_folder(run, table, rank) for table in ("layers", "steps")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        for number, first in enumerate(range(0, steps, FLUSH_STEPS)):
            part = range(first, min(first + FLUSH_STEPS, steps))
            rows = {
                "layers": layer_columns(part, layers, rank, plant=False),
                "steps": step_columns(part, rank),
            }
            if rank == odd[0]:
                rows["layers"]["norm"][rows["layers"]["layer"] == odd[1]] *= ODD
            for table, columns in rows.items():
                content = encode(arrow(table, columns))
                segment_path(folders[table], number).write_bytes(content)


def files_of(run: Path, table: str) -> list[Path]:
    """The segments of all ranks, listed as a reader does."""
    return [
        path
        for rank in ranks(run, table)
        for path in listing(rank_folder(run, table, rank)).live_segments()
    ]


def question(source: str, steps: int) -> str:
    """The SQL over a table with rank, step, layer and norm, for a window in the middle."""
    first = max(0, (steps - WINDOW) // 2)
    return QUERY.format(source=source, first=first, end=first + WINDOW)


def ask_directly(run: Path, steps: int) -> dict[str, Any]:
    """List and ask with DuckDB alone."""
    start = time.perf_counter()
    files = files_of(run, "layers")
    listed = time.perf_counter()
    source = (
        f"read_parquet([{', '.join(map(quoted, files))}], hive_partitioning = true,"
        " hive_types = {'rank': INTEGER})"
    )
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        answer = connection.execute(question(source, steps)).fetchall()
    return {
        "open_seconds": listed - start,
        "query_seconds": time.perf_counter() - listed,
        "answer": answer,
    }


def ask_reader(run: Path, steps: int) -> dict[str, Any]:
    """Open a reader and ask it."""
    start = time.perf_counter()
    with RunReader(run) as reader:
        opened = time.perf_counter()
        answer = reader.rows(question("layers", steps))
        return {
            "open_seconds": opened - start,
            "query_seconds": time.perf_counter() - opened,
            "answer": answer,
            "damaged": len(reader.damaged),
        }


WAYS: Final = {"direct": ask_directly, "reader": ask_reader, "sealed": ask_reader}


def ask(way: str, run: Path, steps: int, told: Any, profile: bool) -> None:
    """In a process of its own: nothing is warm but the system's cache, and it can be ended."""
    with cProfile.Profile() as profiled:
        if not profile:
            profiled.disable()
        processor = time.process_time()
        found = WAYS[way](run, steps)
        found["cpu_seconds"] = time.process_time() - processor
    if profile:
        pstats.Stats(profiled).sort_stats("cumulative").print_stats(25)
    told.send(found)


def within(way: str, run: Path, args: argparse.Namespace) -> dict[str, Any] | None:
    """The answer of one way, or None if it took too long or its process died."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=ask, args=(way, run, args.steps, theirs, args.profile))
    process.start()
    theirs.close()
    try:
        # false after the limit, an end of file when the process died
        found: dict[str, Any] | None = mine.recv() if mine.poll(args.limit) else None
    except EOFError:
        found = None
    if found is None:
        process.kill()
    process.join()
    return found


def flush_bytes(layers: int, tensors: int, steps: int) -> dict[str, int]:
    """Bytes of one rank's segments of one flush, with digests of so many tensors a step."""
    numbers = range(steps)
    rows = {
        "steps": step_columns(numbers),
        "layers": layer_columns(numbers, layers),
        "digests": digest_columns(numbers, tensors),
    }
    return {table: len(encode(arrow(table, columns))) for table, columns in rows.items()}


def measure(run: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Write, list and ask."""
    odd = hidden(args.ranks, args.layers, args.seed)
    start = time.perf_counter()
    write(run, args.ranks, args.layers, args.steps, odd)
    written = time.perf_counter() - start
    start = time.perf_counter()
    files = files_of(run, "layers") + files_of(run, "steps")
    listed = time.perf_counter() - start
    found: dict[str, Any] = {
        "rows": args.ranks * args.layers * args.steps,
        "ranks": args.ranks,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "write_seconds": written,
        "list_seconds": listed,
        "hidden": odd,
        "flush_bytes": {
            steps: flush_bytes(args.layers, args.tensors, steps) for steps in (1, FLUSH_STEPS)
        },
        "ways": {},
    }
    print_trace(found)
    for way in ("direct", "reader", *(["sealed"] if args.seal else [])):
        if way == "sealed":
            start = time.perf_counter()
            seals = seal_run(run)
            found["seals"], found["seal_seconds"] = len(seals), time.perf_counter() - start
            print(f"{len(seals):,} seals written in {found['seal_seconds']:.1f} s")
        found["ways"][way] = within(way, run, args)
        print_way(way, found["ways"][way], odd, args.limit)
    return found


def print_trace(found: dict[str, Any]) -> None:
    """What lies on disk."""
    print(
        f"\n{found['rows']:,} rows of layers of {found['ranks']:,} ranks: {found['files']:,} files,"
        f" {found['bytes'] / 1e9:.2f} GB, written in {found['write_seconds']:.0f} s, listed in"
        f" {found['list_seconds']:.2f} s"
    )
    for steps, sizes in found["flush_bytes"].items():
        each = ", ".join(f"{table} {size:,}" for table, size in sizes.items())
        print(f"bytes of a rank's flush of {steps} steps: {each}")
    print(f"\nwhich rank is odd, which layer? (hidden: {found['hidden']}, bar {BAR:g} s)")
    columns = "".join(f"{name:>9}" for name in ("open", "query", "both", "CPU"))
    print(f"{'seconds':<12}{columns}   named: rank, layer, z; the next")


def print_way(way: str, told: dict[str, Any] | None, odd: tuple[int, int], limit: float) -> None:
    """One way's line."""
    if told is None:
        print(f"{way:<12}no answer within {limit:g} s")
        return
    opened, asked = told["open_seconds"], told["query_seconds"]
    right = "" if named(told) == odd else "  WRONG"
    best = "; ".join(f"{rank}, {layer}, {z:+.1f}" for rank, layer, z in told["answer"])
    print(
        f"{way:<12}{opened:>9.2f}{asked:>9.2f}{opened + asked:>9.2f}"
        f"{told['cpu_seconds']:>9.2f}   {best}{right}"
    )


def named(told: dict[str, Any]) -> tuple[int, int] | None:
    """The rank and layer that an answer names, if it names any."""
    if not told["answer"]:
        return None
    rank, layer, _ = told["answer"][0]
    return int(rank), int(layer)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=4, help="digested at a step, for the bytes")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a way may take")
    parser.add_argument("--seal", action="store_true", help="ask after sealing, too")
    parser.add_argument("--profile", action="store_true", help="say where each way's time goes")
    parser.add_argument("--seed", type=int, default=0, help="hides the odd rank and layer")
    parser.add_argument("--folder", type=Path, help="where files go for a while (temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    args = parser.parse_args(argv)
    if min(args.ranks, args.layers, args.steps, args.tensors) < 1 or args.limit <= 0:
        parser.error("numbers must be at least 1")
    if args.ranks < 8:
        parser.error("--ranks must be at least 8: a rank is judged against its peers")
    return args


def main() -> None:
    """Measure and print."""
    args = arguments()
    where: dict[str, Any] = {**machine(), "seed": args.seed}
    print(line(where))
    with tempfile.TemporaryDirectory(prefix="store-scale-", dir=args.folder) as folder:
        found = measure(Path(folder) / "run", args)
    if args.json:
        report = {"machine": where, "results": found}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    told = [way for way in found["ways"].values() if way is not None]
    sys.exit(0 if all(named(way) == tuple(found["hidden"]) for way in told) else 1)


if __name__ == "__main__":
    main()
