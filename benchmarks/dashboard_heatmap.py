"""How long the page Locate takes for a run of many layers and steps.

    python benchmarks/dashboard_heatmap.py                  # 5,000 layers, 8,000 steps: 40 M rows
    python benchmarks/dashboard_heatmap.py --steps 20000    # 100 M rows
    python benchmarks/dashboard_heatmap.py --segments       # as a guard left them, nothing sealed

DuckDB makes the rows, they are encoded as segments of 1,000 steps and folded into seals, in a
folder that is removed afterwards. One layer's norm is a thousand times too large at one step.

How to read it: `first scan` happens once per statistic and version of the run, the other lines at
every view: the whole run, a tenth and most of it, and 160 single steps, first of all layers and
then of a hundred of them; the last lines are a click's detail. CPU is of all threads: on a busy
machine it says more than the wall time. Ends with 1 if the spike is lost anywhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
from machine import line, machine
from trace_rows import make_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.locating import queries_cell, queries_compare
from app.locating.heatmap import MAX_CELLS
from app.locating.layer_rows import rows_of
from app.locating.scans import Window, heatmap_cells, scan, window_in
from app.locating.statistics_sql import STATISTICS
from sdc_guard import RunReader
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path

_SEGMENT: Final = 1_000  # steps
# Box and Muller; as float32, which is what a guard measures
_ROWS: Final = """
    SELECT 1::INTEGER AS attempt, s::BIGINT AS step, l::INTEGER AS layer,
        ((1 + l % 7) * exp(0.15 * sqrt(-2 * ln(1 - random())) * cos(6.283185 * random()))
            * CASE WHEN s = {step} AND l = {layer} THEN 1000 ELSE 1 END)::FLOAT::DOUBLE AS norm,
        0::BIGINT AS nonfinite, 0::BIGINT AS zeros, 'local' AS scope, 1::INTEGER AS copies
    FROM range({first}, {end}) AS a(s), range({layers}) AS b(l)
"""


def write(run: Path, layers: int, steps: int, spike: tuple[int, int], *, seal: bool) -> None:
    """The run's files."""
    make_run(run, layers)
    folder = rank_folder(run, "layers", 0)
    folder.mkdir(parents=True)
    connection = duckdb.connect()
    connection.execute("SELECT setseed(0.5)").fetchall()
    for number, first in enumerate(range(0, steps, _SEGMENT)):
        end = min(first + _SEGMENT, steps)
        query = _ROWS.format(first=first, end=end, layers=layers, step=spike[0], layer=spike[1])
        segment_path(folder, number).write_bytes(encode(connection.sql(query).to_arrow_table()))
    connection.close()
    if seal:
        seal_run(run, at_least=1)
        for number in range(-(-steps // _SEGMENT)):
            segment_path(folder, number).unlink(missing_ok=True)


def timed(what: str, call: Callable[[], Any], repeats: int = 3) -> Any:
    """Print the least wall and CPU time of some calls; returns what the last one did."""
    walls, cpus, found = [], [], None
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        found = call()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    print(f"{what:<44}{min(walls):>8.2f}{min(cpus):>8.2f}", flush=True)
    return found


def measure(run: Path, layers: int, steps: int, spike: tuple[int, int]) -> bool:
    """Print the times; whether the spike was seen everywhere."""
    norm = STATISTICS["norm"]
    names = [f"blocks.{number // 12}.tensor.{number % 12}.weight" for number in range(layers)]
    ids = list(range(layers))
    print(f"{'seconds':<44}{'wall':>8}{'CPU':>8}")
    reader = timed("open the run", lambda: RunReader(run), 1)
    timed("attach its files", lambda: reader.rows("SELECT count(*) FROM layers"), 1)
    whole = timed("first scan of the norms", lambda: scan(reader, norm), 2)
    tenth, near = max(steps // 10, 1), min(steps - 1, spike[0] + 124)
    windows = {
        "whole run, all layers": Window(0, steps - 1, 0, layers - 1),
        "a tenth of the steps, all layers": Window(
            spike[0] // tenth * tenth,
            min(spike[0] // tenth * tenth + tenth, steps) - 1,
            0,
            layers - 1,
        ),
        "most of the steps, all layers": window_in(
            whole, (0, max(steps // 2, near)), (0, layers - 1), layers
        ),
        "160 steps, all layers": Window(max(0, near - 159), near, 0, layers - 1),
        "160 steps, 100 layers": Window(
            max(0, near - 159), near, spike[1] // 100 * 100, min(spike[1] // 100 * 100, layers) + 99
        ),
    }
    seen = True
    for what, window in windows.items():
        rows = rows_of(names, window.low, window.high)
        cells = timed(
            f"{what} ({len(rows)} rows)",
            lambda window=window, rows=rows: heatmap_cells(reader, norm, whole, window, rows, ids),
        )
        farthest = cells.iloc[int(cells["z"].abs().to_numpy().argmax())]
        seen &= (int(farthest["step"]), int(farthest["layer"])) == spike
        seen &= len(cells) <= MAX_CELLS
    timed("a cell's values", lambda: queries_cell.values_at(reader, norm, spike[1], spike[0]))
    curve = (spike[0] - 48, spike[0] + 48)
    timed("a cell's curve", lambda: queries_cell.curves(reader, norm, spike[1], "local", *curve))
    chosen = queries_compare.selection(spike[0], spike[0] + 9, 0)
    frame = timed("selection against baseline", lambda: queries_compare.differences(reader, chosen))
    print(f"spike {'seen' if seen else 'LOST'}; {len(frame):,} differences")
    reader.close()
    return seen


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--segments", action="store_true", help="leave the segments unsealed")
    asked = parser.parse_args()
    spike = (asked.steps * 2 // 3, asked.layers // 3)
    print(line(machine()))
    with tempfile.TemporaryDirectory(prefix="sdc-guard-heatmap-") as folder:
        run = Path(folder) / "run"
        start = time.perf_counter()
        write(run, asked.layers, asked.steps, spike, seal=not asked.segments)
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        print(
            f"{asked.layers:,} layers, {asked.steps:,} steps, {asked.layers * asked.steps:,} rows,"
            f" {size / 1e9:.2f} GB, {'segments' if asked.segments else 'sealed'},"
            f" made in {time.perf_counter() - start:.0f} s"
        )
        return 0 if measure(run, asked.layers, asked.steps, spike) else 1


if __name__ == "__main__":
    sys.exit(main())
