"""kill -9 of the training at a random moment: nothing that was published is lost, the resumed
training goes on under the next attempt, and sdc-bisect still answers."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import preloaded
import pyarrow.parquet as pq
import pytest
from conftest import EVERY, bisect, small_sample, train

from sdc_guard import RunReader
from sdc_guard.archive.restore import checkpoints
from sdc_guard.store.schema import TABLES
from sdc_guard.store.segments import listing, rank_folder

FAULT = 27


def published(run: Path, tables: Iterable[str] = TABLES) -> dict[str, int]:
    """Rows per table in the segments that are published now."""
    return {
        table: sum(
            pq.read_metadata(path).num_rows
            for path in listing(rank_folder(run, table, 0)).segments.values()
        )
        for table in tables
    }


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a segment with `step` is published."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the training ended before it could be killed"
        if published(run, ["steps"])["steps"] >= step:  # a row a step, from step 1 on
            return
        time.sleep(0.05)
    pytest.fail(f"step {step} was not published in time")


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 9))]
)
def test_killed_resumed_and_verified(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    random_numbers = random.Random(seed)
    folder = tmp_path / "run"
    command = [preloaded.python(), small_sample(), "--run", folder, "--every", EVERY]
    command += ["--policy", "record", "--steps", 2000, "--fault", f"weight@{FAULT}"]
    command = [str(part) for part in command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_for_step(folder, random_numbers.randrange(FAULT + 4, FAULT + 30), process)
        time.sleep(0.3 * random_numbers.random())  # what is done then is replayed later
        acknowledged = published(folder)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()  # what was forked for it has its output until it is gone

    with RunReader(folder) as reader:
        assert not reader.damaged
        for table, rows in acknowledged.items():
            assert reader.rows(f"SELECT count(*) FROM every.{table}")[0][0] >= rows
        last = reader.rows("SELECT max(step) FROM steps")[0][0]
    sealed = checkpoints(folder / "archive")
    statuses = {found.manifest.step: found.manifest.status for found in sealed}
    clean = max(step for step, status in statuses.items() if status == "clean")
    assert clean == FAULT // EVERY * EVERY

    # the killed attempt, as it was: the corruption is located in what it left
    first = bisect("verify", folder, "--recorded", "--json")
    assert first.code == 1, first.err
    assert first.json["first_corrupt"] == FAULT

    train(folder, "--resume", folder, "--until", last + 5)
    with RunReader(folder) as reader:
        assert [item.attempt for item in reader.run_file.attempts] == [1, 2]
        assert reader.run_file.attempts[1].first_step == clean + 1
        steps = reader.rows("SELECT attempt, step FROM steps ORDER BY step")
        assert [step for _, step in steps] == list(range(1, last + 6))
        assert {attempt for attempt, step in steps if step <= clean} == {1}
        assert {attempt for attempt, step in steps if step > clean} == {2}
        assert reader.rows("SELECT count(*) FROM every.steps")[0][0] > len(steps)
        kinds = "SELECT kind FROM events WHERE attempt = 2 AND kind <> 'known answer' ORDER BY step"
        assert reader.rows(kinds) == [("restart",), ("end",)]

    # the resumed attempt is clean, and the killed one is still to be had
    second = bisect("run", folder, "--json")
    assert second.json["first_corrupt"] is None, second.out
    replayed = bisect("verify", folder, "--recorded", "--from", clean, "--json")
    assert replayed.code == 0, replayed.err
    again = bisect("verify", folder, "--recorded", "--attempt", 1, "--json")
    assert again.json["first_corrupt"] == FAULT


def test_resuming_from_a_suspect_checkpoint_does_not_make_it_clean(
    faulty_run: Path, tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(faulty_run, folder)
    train(folder, "--resume", folder / "archive" / "step=000040", "--until", 50)
    newest = checkpoints(folder / "archive")[-1]
    assert (newest.manifest.step, newest.manifest.attempt) == (50, 2)
    assert newest.manifest.status == "suspect"
    assert "step 27" in newest.manifest.reasons[0]
    assert (folder / "archive" / "step=000050").is_dir()  # the first attempt's is kept
    assert newest.folder.name == "step=000050-a2"
    assert bisect("run", folder, "--json").json["first_corrupt"] == 30
