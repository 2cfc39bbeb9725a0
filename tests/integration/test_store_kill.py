"""A trace whose writer or sealer is killed -9, and one that several processes use at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sdc_guard import RunReader
from sdc_guard.store.sealing import seal_run

WRITER = """
import sys
from pathlib import Path
from sdc_guard.store.writer import Health, Writer
run, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
writer = Writer(run, 0, Health())
print("ready", flush=True)
for step in range(first, last):
    writer.append("steps", attempt=1, step=step, loss=step / 3)
    writer.append("layers", attempt=1, step=step, layer=[0, 1, 2], norm=[1.0, 2.0, step])
    if step % 7 == 6:
        assert writer.flush()
        print(step, flush=True)
writer.close()
print("done", flush=True)
"""

SEALER = """
import sys
from pathlib import Path
from sdc_guard.store import sealing, sealing_plan
sealing.GRACE_SECONDS = 0.0
# small windows and tiers, so that seals are merged and deleted all the time
sealing_plan.WINDOW_STEPS, sealing_plan.ROWS_WORTH_A_SEAL = 10, 1
sealing.NEIGHBOURS = sealing_plan.NEIGHBOURS = 3
print("ready", flush=True)
while True:
    sealing.seal_run(Path(sys.argv[1]))
"""

READER = """
import sys
from pathlib import Path
from sdc_guard import RunReader
last = -1
print("ready", flush=True)
while last < int(sys.argv[2]):
    with RunReader(Path(sys.argv[1])) as reader:
        for _ in range(5):
            count, distinct, newest = reader.rows(
                "SELECT count(*), count(DISTINCT step), coalesce(max(step), -1) FROM steps"
            )[0]
            assert count == distinct == newest + 1, (count, distinct, newest)
            assert newest >= last, (newest, last)
            assert not reader.damaged, reader.damaged
            last = newest
            reader.refresh()
print("seen", last, flush=True)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a script and wait until it says that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def kill(process: subprocess.Popen[str]) -> str:
    """Kill -9; what it had printed by then."""
    os.kill(process.pid, signal.SIGKILL)
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    return printed


def test_what_was_acknowledged_outlives_kills_of_writer_and_sealer(
    empty_run: Path, seed: int
) -> None:
    moments = random.Random(seed)
    first = 0
    for kill_number in range(5):
        writer = start(WRITER, empty_run, first, first + 10**6)
        sealer = start(SEALER, empty_run) if kill_number % 2 else None
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(moments.randint(1, 12))]
        time.sleep(moments.uniform(0, 0.03))
        lines += kill(writer).splitlines()
        if sealer is not None:
            kill(sealer)
        last = max(int(line) for line in lines)
        with RunReader(empty_run) as reader:
            assert reader.damaged == {}
            rows = reader.rows("SELECT step, loss FROM steps")
            assert all(loss == step / 3 for step, loss in rows)
            times = Counter(step for step, _ in rows)
            assert set(times.values()) <= {1}
            assert set(range(last + 1)) <= set(times)
            layers = Counter(step for (step,) in reader.rows("SELECT step FROM layers"))
            assert set(layers.values()) <= {3}
            assert set(range(last + 1)) <= set(layers)
        # a new start goes on after what is there, whether acknowledged or not
        first = max(max(times, default=-1), max(layers, default=-1)) + 1
        missing = [step for step in range(first) if step not in times or step not in layers]
        fill_in(empty_run, missing, times, layers)
    seal_run(empty_run)
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*), count(DISTINCT step) FROM steps") == [(first, first)]
        assert reader.rows("SELECT count(*) FROM layers") == [(3 * first,)]
        assert reader.damaged == {}


def fill_in(run: Path, missing: list[int], times: Counter[int], layers: Counter[int]) -> None:
    """Write what was in flight at the kill, so that the next round starts without a gap."""
    from sdc_guard.store.writer import Health, Writer

    writer = Writer(run, 0, Health())
    for step in missing:
        if step not in times:
            writer.append("steps", attempt=1, step=step, loss=step / 3)
        if step not in layers:
            writer.append(
                "layers", attempt=1, step=step, layer=[0, 1, 2], norm=[1.0, 2.0, float(step)]
            )
    writer.close()


def test_a_writer_a_sealer_and_two_readers_at_once(empty_run: Path) -> None:
    steps = 250
    processes = {
        "one": start(READER, empty_run, steps - 1),
        "two": start(READER, empty_run, steps - 1),
        "writer": start(WRITER, empty_run, 0, steps),
    }
    sealer = start(SEALER, empty_run)
    printed = {}
    for name, process in processes.items():
        try:
            out, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{name} did not end: {process.communicate()[1]}")
        assert process.returncode == 0, (name, errors)
        printed[name] = out.splitlines()[-1]
    kill(sealer)
    assert printed == {
        "one": f"seen {steps - 1}",
        "two": f"seen {steps - 1}",
        "writer": "done",
    }
