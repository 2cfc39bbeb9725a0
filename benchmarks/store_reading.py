"""Reading a trace: while it is written and sealed by other processes, and when it is sealed."""

from __future__ import annotations

import math
import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from store_writing import append, quantiles
from trace_queries import QUERIES, wrong
from trace_rows import layer_columns, make_run, step_columns

from sdc_guard import RunReader
from sdc_guard.store.compactor import Compactor
from sdc_guard.store.health import Health
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path
from sdc_guard.store.writer import Writer

FLUSHES = 20  # a second
POLLS = 5  # a second
_SEGMENT_STEPS = 1000  # of the segments that are written by hand
_ASKED = 5  # a layer like any other


def write_live(run: Path, layers: int, end: Any, acknowledged: Any, told: Queue[Any]) -> None:
    """A process that publishes a step 20 times a second until `end`, and seals as a guard does."""
    health, late, step = Health(), 0, 0
    compactor = Compactor(run)
    writer = Writer(run, 0, health, compactor.segment_published)
    taken = []
    start = time.monotonic()
    while time.time() < end.value:
        columns, of_step = layer_columns([step], layers), step_columns([step])
        due = start + step / FLUSHES - time.monotonic()
        late += due < 0
        time.sleep(max(0.0, due))
        begun = time.perf_counter()
        append(writer, columns, of_step)
        if not writer.flush():
            continue
        taken.append(1e3 * (time.perf_counter() - begun))
        step += 1
        acknowledged.value = step
    writer.close()
    compactor.wait()
    told.put(
        {
            "flushes": step,
            "late": int(late),
            "flush_ms": quantiles(taken),
            "errors": health.errors,
            "dropped": health.dropped,
            "last_error": health.last_error,
        }
    )


def read_live(
    run: Path, layers: int, end: Any, acknowledged: Any, ready: Event, told: Queue[Any]
) -> None:
    """A process that asks all queries 5 times a second, as a dashboard would, and checks them."""
    taken: dict[str, list[float]] = {"refresh": [], **{name: [] for name in QUERIES}}
    errors: list[str] = []
    with RunReader(run) as reader:
        ready.wait()
        while time.time() < end.value:
            begun = time.monotonic()
            known = int(acknowledged.value)
            try:
                taken["refresh"].append(timed(reader.refresh)[0])
                for name in QUERIES:
                    milliseconds, found = ask(reader, name, _ASKED)
                    taken[name].append(milliseconds)
                    trouble = wrong(name, found, layers, _ASKED, known)
                    errors += [f"{name}: {trouble}"] if trouble else []
            except Exception as error:  # noqa: BLE001 - because every kind of it is to be counted
                errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            time.sleep(max(0.0, begun + 1 / POLLS - time.monotonic()))
        errors += [f"damaged: {path.name}: {why}" for path, why in reader.damaged.items()]
    told.put({"taken": taken, "errors": errors})


def timed(call: Any) -> tuple[float, Any]:
    """Milliseconds of a call, and what it returned."""
    start = time.perf_counter()
    found = call()
    return 1e3 * (time.perf_counter() - start), found


def ask(reader: RunReader, name: str, layer: int) -> tuple[float, pa.Table]:
    """Milliseconds of a query, and its answer."""
    return timed(lambda: QUERIES[name](reader, layer))


def measure_live(folder: Path, layers: int, seconds: float, readers: int) -> dict[str, Any]:
    """One process writes, others read."""
    run = make_run(folder / "live", layers)
    context = multiprocessing.get_context("spawn")
    acknowledged, ready = context.Value("q", 0), context.Event()
    end = context.Value("d", math.inf)
    told_writer: Queue[Any] = context.Queue()
    told_readers: Queue[Any] = context.Queue()
    given = (run, layers, end, acknowledged)
    processes = [
        context.Process(target=read_live, args=(*given, ready, told_readers), daemon=True)
        for _ in range(readers)
    ]
    for process in processes:
        process.start()
    # not a daemon: it starts the process that seals
    writer = context.Process(target=write_live, args=(*given, told_writer))
    writer.start()
    while acknowledged.value < 1:
        if not writer.is_alive():
            raise RuntimeError("the process that writes ended early")
        time.sleep(0.01)
    end.value = time.time() + seconds
    ready.set()
    limit = seconds + 120
    of_writer = told_writer.get(timeout=limit)
    of_readers = [told_readers.get(timeout=limit) for _ in processes]
    for process in (writer, *processes):
        process.join()
    names = ("refresh", *QUERIES)
    errors = [error for reader in of_readers for error in reader["errors"]]
    return {
        "seconds": seconds,
        "readers": readers,
        "planned_polls": readers * seconds * POLLS,
        "writer": of_writer,
        "reader_ms": {
            name: quantiles([value for reader in of_readers for value in reader["taken"][name]])
            for name in names
        },
        "lock_errors": sum("lock" in error.lower() for error in errors),
        "errors": len(errors),
        "examples": sorted(set(errors))[:5],
    }


def write_quickly(run: Path, layers: int, steps: int) -> Path:
    """A sealed run of many rows, in segments of 1,000 steps that no writer's thread took."""
    make_run(run, layers)
    for number, first in enumerate(range(0, steps, _SEGMENT_STEPS)):
        part = range(first, min(first + _SEGMENT_STEPS, steps))
        for table, columns in (
            ("layers", layer_columns(part, layers)),
            ("steps", step_columns(part)),
        ):
            folder = rank_folder(run, table, 0)
            folder.mkdir(parents=True, exist_ok=True)
            segment_path(folder, number).write_bytes(encode(arrow(table, columns)))
    seal_run(run, at_least=1)
    return run


def arrow(table: str, columns: dict[str, Any]) -> pa.Table:
    """Columns as a table of the schema; scalars count for every row, missing columns are null."""
    rows = len(columns["step"])
    arrays = [
        pa.array(value, type=field.type)
        if isinstance(value := columns.get(field.name), (list, np.ndarray))
        else pa.repeat(pa.scalar(value, type=field.type), rows)
        for field in TABLES[table]
    ]
    return pa.Table.from_arrays(arrays, schema=TABLES[table])


def measure_sealed(
    run: Path, layers: int, steps: int, names: list[str], repeats: int
) -> dict[str, Any]:
    """The queries over a sealed run, each many times on an open reader; a layer drawn each time."""
    rng = np.random.default_rng(0)
    opening, reader = timed(lambda: RunReader(run))
    taken: dict[str, list[float]] = {name: [] for name in names}
    errors = []
    with reader:
        for _ in range(repeats):
            for name in names:
                layer = int(rng.integers(layers))
                milliseconds, found = ask(reader, name, layer)
                taken[name].append(milliseconds)
                trouble = wrong(name, found, layers, layer, steps)
                errors += [f"{name}: {trouble}"] if trouble else []
        damaged = len(reader.damaged)
    return {
        "rows": layers * steps,
        "open_ms": opening,
        "reader_ms": {name: quantiles(values) for name, values in taken.items()},
        "errors": len(errors) + damaged,
        "examples": sorted(set(errors))[:5],
    }


def print_live(found: dict[str, Any]) -> None:
    """What was measured while the run was written."""
    writer = found["writer"]
    flush = writer["flush_ms"]
    print(
        f"\nreading for {found['seconds']:g} s by {found['readers']} processes, {POLLS} polls a"
        f" second each, while one writes: {writer['flushes']:,} flushes ({writer['late']:,} late),"
        f" p50 {flush['p50']:.1f} ms, p99 {flush['p99']:.1f} ms, {writer['errors']} errors,"
        f" {writer['dropped']} rows dropped"
    )
    print_latencies(found["reader_ms"], {})
    polls, planned = found["reader_ms"]["refresh"]["count"], found["planned_polls"]
    print(f"{polls:,} polls of {planned:,.0f} planned; a reader that is late leaves some out")
    print(f"lock errors {found['lock_errors']}, wrong or failed answers {found['errors']}")
    print_examples(found)


def print_sealed(found: dict[str, Any], bars: dict[str, int]) -> None:
    """What was measured on a sealed run."""
    print(f"\n{found['rows']:,} sealed rows; opening a reader {found['open_ms']:.0f} ms")
    print_latencies(found["reader_ms"], bars)
    print(f"wrong answers {found['errors']}")
    print_examples(found)


def print_latencies(latencies: dict[str, dict[str, float]], bars: dict[str, int]) -> None:
    """A line for each query."""
    print(f"{'milliseconds':<22}{'p50':>9}{'p99':>9}{'bar':>8}{'asked':>9}")
    for name, taken in latencies.items():
        print(
            f"{name:<22}{taken['p50']:>9.1f}{taken['p99']:>9.1f}{bars.get(name, ''):>8}"
            f"{taken['count']:>9,}"
        )


def print_examples(found: dict[str, Any]) -> None:
    """Some of what was wrong."""
    for example in found["examples"]:
        print(f"  {example}")
