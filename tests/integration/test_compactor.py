"""Sealing by a process of its own while rows are written: readers see every row once."""

from __future__ import annotations

from pathlib import Path

from sdc_guard import RunReader
from sdc_guard.store.compactor import SEGMENTS_BETWEEN, Compactor
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
