"""Sealing by a process of its own while rows are written: readers see every row once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sdc_guard import RunReader
from sdc_guard.store.atomic import exclusive
from sdc_guard.store.compactor import SEGMENTS_BETWEEN, Compactor, start_compaction
from sdc_guard.store.health import Health
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.segments import listing, rank_folder
from sdc_guard.store.writer import Writer


def test_segments_are_sealed_while_the_run_goes_on(tmp_path: Path) -> None:
    RunFile("run", 1, ()).with_attempt(Attempt(1, 0, 0.0)).write(tmp_path)
    health, compactor = Health(), Compactor(tmp_path)
    writer = Writer(tmp_path, 0, health, compactor.segment_published)
    count = SEGMENTS_BETWEEN + 20
    for step in range(count):
        writer.append("steps", attempt=1, step=step, loss=float(step))
        assert writer.flush()
    compactor.wait()
    writer.close()
    found = listing(rank_folder(tmp_path, "steps", 0))
    ((first, last),) = found.seals
    assert first == 0
    assert last >= SEGMENTS_BETWEEN - 1
    assert health.errors == 0
    with RunReader(tmp_path) as reader:
        rows = reader.rows("SELECT step, loss FROM steps ORDER BY step")
    assert rows == [(step, float(step)) for step in range(count)]


def recorded(run: Path) -> Path:
    """A run with two segments."""
    RunFile("run", 1, ()).with_attempt(Attempt(1, 0, 0.0)).write(run)
    writer = Writer(run, 0, Health())
    for step in (0, 1):
        writer.append("steps", attempt=1, step=step)
        assert writer.flush()
    writer.close()
    return run


def test_any_reader_may_start_a_compaction(tmp_path: Path) -> None:
    assert start_compaction(tmp_path) is None  # there is no trace
    run = recorded(tmp_path)
    process = start_compaction(run)
    assert process is not None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert process.wait() == 0
    assert list(listing(rank_folder(run, "steps", 0)).seals) == [(0, 1)]


def test_one_compaction_a_folder(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with exclusive(run / "trace" / ".sealing") as mine:
        assert mine
        assert start_compaction(run) is None
        # one that was started at the same moment
        command = [sys.executable, "-m", "sdc_guard.cli", "compact", str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "0 seals written\n"
    assert listing(rank_folder(run, "steps", 0)).seals == {}


def test_compacting_and_reading_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sdc_guard.store.sealing import seal_run;"
        "from sdc_guard.store import queries; from sdc_guard.store.reader import RunReader;"
        "run = Path(sys.argv[1]); seal_run(run); RunReader(run).troubles();"
        "print(sorted({'torch', 'streamlit'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(recorded(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
