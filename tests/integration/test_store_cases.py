"""What people met with a database beside a training run, and why it does not happen here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdc_guard import RunReader
from sdc_guard.store import queries, sealing, sealing_plan
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.writer import Health, Writer

LAYERS = 20

READS = """
import sys
from sdc_guard import RunReader
with RunReader(sys.argv[1]) as reader:
    print(reader.rows("SELECT count(*) FROM layers")[0][0], flush=True)
    assert reader.damaged == {}, reader.damaged
    sys.stdin.readline()
"""

WRITES = """
import sys
from pathlib import Path
from sdc_guard.store.writer import Health, Writer
health = Health()
writer = Writer(Path(sys.argv[1]), 0, health)
step = int(sys.argv[2])
for n in range(5):
    writer.append("layers", attempt=1, step=step + n, layer=list(range(20)), norm=1.0)
    assert writer.flush(), health
writer.close()
assert (health.errors, health.dropped) == (0, 0), health
"""


def record(run: Path, first: int, last: int, *, flush: int = 20) -> None:
    """Steps first to last, a segment per `flush` steps; the norm of layer l at step s is s + l."""
    health = Health()
    writer = Writer(run, 0, health)
    for start in range(first, last + 1, flush):
        steps = np.arange(start, min(start + flush, last + 1))
        layers = np.tile(np.arange(LAYERS), len(steps))
        steps = steps.repeat(LAYERS)
        writer.append("layers", attempt=1, step=steps, layer=layers, norm=(steps + layers) * 1.0)
        assert writer.flush(), health
    writer.close()


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, whatever becomes of it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_reader_writer_and_sealer_never_lock_each_other(
    empty_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[str]],
) -> None:
    monkeypatch.setattr(sealing, "GRACE_SECONDS", -1.0)
    record(empty_run, 0, 99)
    assert seal_run(empty_run)
    record(empty_run, 100, 199)
    started += [start(READS, empty_run) for _ in range(2)]
    for reader in started:
        assert reader.stdout is not None
        assert reader.stdout.readline() == f"{200 * LAYERS}\n"
    with RunReader(empty_run) as own:
        assert own.rows("SELECT count(*) FROM layers") == [(200 * LAYERS,)]
        # with three readers that hold the seals open: write, seal, delete
        started.append(start(WRITES, empty_run, 200))
        _, errors = started[-1].communicate(timeout=60)
        assert started[-1].returncode == 0, errors
        assert seal_run(empty_run)
        seal_run(empty_run)
        # files that it had listed are gone, so that it looks again
        assert own.rows("SELECT count(*) FROM layers") == [(205 * LAYERS,)]
        assert own.damaged == {}
    for reader in started[:2]:
        _, errors = reader.communicate("\n", timeout=60)
        assert reader.returncode == 0, errors


def test_eight_threads_and_a_hundred_queries_each(empty_run: Path) -> None:
    record(empty_run, 0, 99)
    seal_run(empty_run)
    record(empty_run, 100, 149)
    wrong: list[Any] = []
    with RunReader(empty_run) as reader:

        def ask(thread: int) -> None:
            try:
                for number in range(100):
                    step = (31 * thread + number) % 150
                    rows = reader.rows(
                        "SELECT layer, norm FROM layers WHERE step = $step ORDER BY layer",
                        {"step": step},
                    )
                    if rows != [(layer, float(step + layer)) for layer in range(LAYERS)]:
                        wrong.append((step, rows))
            except Exception as error:  # noqa: BLE001 - because a thread must report, not die
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - because links may be gone by then


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("rounds", "megabytes"), [(16, 16), pytest.param(90, 64, marks=pytest.mark.slow)]
)
def test_a_reader_that_lives_long_grows_neither_in_memory_nor_in_files(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, megabytes: int
) -> None:
    monkeypatch.setattr(sealing, "GRACE_SECONDS", -1.0)
    monkeypatch.setattr(sealing_plan, "NEIGHBOURS", 3)
    monkeypatch.setattr(sealing, "NEIGHBOURS", 3)
    with RunReader(empty_run) as reader:

        def look(first: int) -> None:
            record(empty_run, first, first + 19, flush=5)
            seal_run(empty_run)
            reader.refresh()
            for _ in range(5):
                found = queries.layer_over_steps(reader, 0, points=50)
                assert 0 < found.num_rows <= 50
            assert reader.rows("SELECT count(*) FROM layers") == [((first + 20) * LAYERS,)]

        first = rounds // 2
        for round_ in range(first):
            look(20 * round_)
        memory, files = resident(), open_files()
        for round_ in range(first, first + rounds):
            look(20 * round_)
        print(f"{open_files() - files} files, {(resident() - memory) / 2**20:.1f} MiB more")
        assert open_files() - files < 10
        assert resident() - memory < megabytes * 2**20
        assert len(list(empty_run.rglob("seal-*"))) < 20


def test_a_leftover_of_a_killed_sealing_is_no_log_of_a_seal(empty_run: Path) -> None:
    record(empty_run, 0, 59)
    (seal,) = seal_run(empty_run)
    (seal.parent / f".{seal.name}.abc.tmp").write_bytes(seal.read_bytes()[:5000])
    (seal.parent / f".{seal.name}.abc.tmp.wal").write_bytes(b"half a log")
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*) FROM layers") == [(60 * LAYERS,)]
        assert reader.troubles() == []
    seal_run(empty_run)
    assert list(seal.parent.glob(".*")) == []
    assert list(seal.parent.glob("*.wal")) == []
