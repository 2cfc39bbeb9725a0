"""Writing a trace: rows a second, bytes a row, and what a step pays to hand its rows over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from trace_rows import layer_columns, step_columns

from sdc_guard.kept_evidence import room
from sdc_guard.signals.sums import MEASURES
from sdc_guard.store.health import Health
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import listing, rank_folder
from sdc_guard.store.writer import Writer

ROWS_AT_ONCE = 400_000  # that wait for the writer's thread; far below what makes it drop any


def append(writer: Writer, columns: dict[str, Any], steps: dict[str, Any]) -> None:
    """Hand over the rows of a step of which the ring holds the evidence."""
    writer.append("layers", kept=True, **columns)
    writer.append("steps", kept=True, **steps)


def keep(writer: Writer, columns: dict[str, Any], steps: dict[str, Any]) -> None:
    """Put what a step's rows are made of into the ring, as a guard does at once."""
    measures = [columns[measure].tobytes() for measure in MEASURES]
    if not writer.keep(["before", steps["step"][0].item(), columns["layer"].tobytes(), *measures]):
        raise RuntimeError("the ring does not take a step")


def finished(writer: Writer, health: Health) -> None:
    """Close a writer that must have kept every row.

    Raises:
        RuntimeError: it has not.
    """
    writer.close(600.0)
    if health.dropped or health.errors:
        raise RuntimeError(f"{health.dropped} rows dropped, {health.last_error}")


def fill(run: Path, layers: int, steps: int) -> tuple[float, float]:
    """Record a run as quickly as the writer can, until its last row is published.

    The rows are computed beforehand, a part at a time, and that time is not counted.

    Returns:
        seconds, and CPU seconds of all threads.
    """
    health = Health()
    writer = Writer(run, 0, health)
    part = max(1, ROWS_AT_ONCE // layers)
    seconds = processor = 0.0
    for first in range(0, steps, part):
        numbers = range(first, min(first + part, steps))
        rows = [(layer_columns([n], layers), step_columns([n])) for n in numbers]
        start, used = time.perf_counter(), time.process_time()
        for columns, of_step in rows:
            append(writer, columns, of_step)
        writer.flush(600.0)
        seconds += time.perf_counter() - start
        processor += time.process_time() - used
    finished(writer, health)
    return seconds, processor


def enqueue(run: Path, layers: int, steps: int, pause: float) -> dict[str, list[float]]:
    """Microseconds of handing a step's rows over, at a step every `pause` seconds.

    Returns:
        "append": of the call alone. "keep": of a step's evidence in the ring.
    """
    health = Health()
    writer = Writer(run, 0, health, ring_bytes=room(layers))
    taken: dict[str, list[float]] = {"append": [], "keep": []}
    for number in range(steps):
        columns, of_step = layer_columns([number], layers), step_columns([number])
        time.sleep(pause)
        for way, hand_over in (("keep", keep), ("append", append)):
            start = time.perf_counter()
            hand_over(writer, columns, of_step)
            taken[way].append(1e6 * (time.perf_counter() - start))
    finished(writer, health)
    return taken


def bytes_of(run: Path) -> dict[str, int]:
    """Bytes and files of rank 0's rows of layers, as readers find them."""
    found = listing(rank_folder(run, "layers", 0))
    segments, seals = found.live_segments(), found.live_seals()
    return {
        "segment_bytes": sum(path.stat().st_size for path in segments),
        "segments": len(segments),
        "seal_bytes": sum(path.stat().st_size for path in seals),
        "seals": len(seals),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Median and 99th percentile."""
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return {"p50": float(p50), "p99": float(p99), "count": len(values)}


def measure(folder: Path, run: Path, layers: int, steps: int, pause: float) -> dict[str, Any]:
    """Record `run` and seal it; hand over rows at the pace of a training in a run of its own."""
    rows = layers * steps
    seconds, processor = fill(run, layers, steps)
    unsealed = bytes_of(run)
    start = time.perf_counter()
    seal_run(run)
    sealing = time.perf_counter() - start
    sealed = bytes_of(run)
    paced = folder / "paced"
    paced.mkdir()
    return {
        "rows": rows,
        "rows_per_second": rows / seconds,
        "cpu_ms_per_step": 1e3 * processor / steps,
        "segments": unsealed["segments"],
        "segment_bytes_per_row": unsealed["segment_bytes"] / rows,
        "sealing_seconds": sealing,
        "seals": sealed["seals"],
        "sealed_bytes_per_row": sealed["seal_bytes"] / rows,
        "pause_ms": 1e3 * pause,
        "enqueue_us": {
            way: quantiles(taken) for way, taken in enqueue(paced, layers, steps, pause).items()
        },
    }


def print_table(found: dict[str, Any]) -> None:
    """What was measured."""
    print(
        f"\nwriting: {found['rows']:,} rows of layers, {found['rows_per_second']:,.0f} a second,"
        f" {found['cpu_ms_per_step']:.2f} ms of CPU a step,"
        f" in {found['segments']} segments of {found['segment_bytes_per_row']:.1f} bytes a row"
        f"\nsealing: {found['sealing_seconds']:.1f} s, {found['seals']} seals of"
        f" {found['sealed_bytes_per_row']:.1f} bytes a row"
        f"\nhanding over a step's rows, a step every {found['pause_ms']:g} ms"
    )
    print(f"{'microseconds':<22}{'p50':>9}{'p99':>9}{'bar':>8}")
    for way, taken in found["enqueue_us"].items():
        print(f"{way:<22}{taken['p50']:>9.1f}{taken['p99']:>9.1f}{100:>8}")
