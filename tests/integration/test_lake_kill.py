"""Several uploaders of the same run at once, one of them killed -9 again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import lake_server
import pytest
from lake_server import Server, Worker, lake_python

from sdc_guard.store import sealing
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.writer import Health, Writer

pytestmark = pytest.mark.postgres

RANKS = (0, 8)  # of two nodes
TABLES = ("steps", "layers")
# who uploads: two for everything, the first of which is killed, and one for each node
UPLOADERS = (None, None, {0}, {8})

UPLOADER = """
import json, sys, time
from pathlib import Path
from sdc_guard.lake import uploader
from sdc_guard.lake.location import Lake
run, catalog, data, ranks = sys.argv[1:]
commit = uploader.commit
def timed(*arguments, **options):
    start = time.perf_counter()
    try:
        done = commit(*arguments, **options)
    except Exception as error:  # whatever it is: it is printed, and raised on
        print("conflict" if "conflict" in str(error) else f"error {error!r}", flush=True)
        raise
    if done.records:
        print("commit", time.perf_counter() - start, flush=True)
    return done
uploader.commit = timed
chosen = json.loads(ranks)
mine = uploader.Uploader(Path(run), Lake.of(catalog, data), chosen, most_pieces=2)
mine.upload()
print("ready", flush=True)
while True:
    mine.upload()
    time.sleep(0.01)
"""

SAME = """
import json, sys
from collections import Counter
from sdc_guard.store.opening import open_run
with open_run(sys.argv[1]) as folder, open_run(sys.argv[2]) as lake:
    result = {}
    for name in ("steps", "layers"):
        one, two = (Counter(r.rows(f"SELECT * FROM every.{name}")) for r in (folder, lake))
        result[name] = [one.total(), (one - two).total(), (two - one).total()]
    columns = "table_name, rank, first, last, rows, uploaded"
    records = lake.rows(f"SELECT {columns} FROM lake.uploaded WHERE run = '{lake.identity}'")
print(json.dumps([result, records]))
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    lake_server.require()
    with lake_server.server() as server:
        yield server


class Story:
    """A run that is written and sealed while its uploaders come and go."""

    def __init__(self, run: Path, catalog: str, data: Path) -> None:
        self.run, self.catalog, self.data = run, catalog, data
        run.mkdir()
        layers = (Layer(0, "w", (), (1,), "float32", 1),)
        RunFile(run.name, 9, layers, (Attempt(1, 0, 0.0),)).write(run)
        self._writers = {rank: Writer(run, rank, Health()) for rank in RANKS}
        self._steps = 0
        self.printed: list[str] = []

    def start(self, ranks: set[int] | None) -> subprocess.Popen[str]:
        chosen = json.dumps(sorted(ranks) if ranks else None)
        return lake_python("-c", UPLOADER, self.run, self.catalog, self.data, chosen)

    def write(self, seconds: float) -> None:
        """Publish small segments, and fold them now and then."""
        until = time.monotonic() + seconds
        while True:
            for rank, writer in self._writers.items():
                writer.append("steps", attempt=1, step=self._steps, loss=self._steps / 3)
                writer.append("layers", attempt=1, step=self._steps, layer=[0, 0], norm=[1.0, rank])
                assert writer.flush()
            self._steps += 1
            if self._steps % 8 == 0:
                sealing.seal_run(self.run)
            if time.monotonic() >= until:
                return
            time.sleep(0.05)

    def end(self, process: subprocess.Popen[str]) -> None:
        """Kill an uploader and keep what it printed."""
        os.kill(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        self.printed += out.splitlines()

    def close(self) -> int:
        """The steps written."""
        for writer in self._writers.values():
            writer.close()
        return self._steps


@pytest.mark.parametrize(
    ("kills", "commits"), [(2, 20), pytest.param(10, 200, marks=pytest.mark.slow)]
)
def test_nothing_is_lost_and_nothing_doubled(
    postgres: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    kills: int,
    commits: int,
) -> None:
    monkeypatch.setattr(sealing, "GRACE_SECONDS", 0.0)
    moments = random.Random(seed)
    story = Story(tmp_path / "run", postgres.catalog(f"kills{kills}"), tmp_path / "lake")
    # all of them make the lake's tables at the same time
    victim, *others = (story.start(ranks) for ranks in UPLOADERS)
    for _ in range(kills):
        wait_until_ready(story, victim)
        story.write(moments.uniform(0, 1))
        story.end(victim)
        victim = story.start(None)
    while transactions(postgres, story) < commits:
        story.write(1)
    for process in (victim, *others):
        assert process.poll() is None, process.communicate()[1]
        story.end(process)
    steps = story.close()
    worker = Worker()
    location = f"ducklake:{story.catalog}?run=run"
    last = worker.command("upload", story.run, "--catalog", story.catalog)
    assert last.code == 0, last.err
    assert "damaged" not in last.err
    result, records = json.loads(worker.script(SAME, story.run, location))
    worker.close()
    tell(story, records)
    assert result == {"steps": [2 * steps, 0, 0], "layers": [4 * steps, 0, 0]}
    assert not [line for line in story.printed if line.startswith("error")]
    check(records, steps)


def wait_until_ready(story: Story, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != "ready\n":
        assert line, process.communicate()[1]
        story.printed.append(line.strip())


def transactions(postgres: Server, story: Story) -> int:
    """How many wrote to the tables of the trace."""
    query = "SELECT count(*) FROM ducklake_snapshot_changes WHERE changes_made LIKE '%insert%'"
    return int(postgres.query(story.catalog, query))


def check(records: list[list[float]], steps: int) -> None:
    """Each segment number is recorded once, and with it as many rows as were written."""
    spans, rows = defaultdict(list), defaultdict(int)
    for table, rank, first, last, count, _ in records:
        spans[table, rank].append((first, last))
        rows[table, rank] += count
    assert sorted(spans) == [(table, rank) for table in sorted(TABLES) for rank in RANKS]
    for (table, rank), found in spans.items():
        numbers = [number for first, last in found for number in range(int(first), int(last) + 1)]
        assert sorted(numbers) == list(range(steps)), (table, rank)
        assert rows[table, rank] == steps * (2 if table == "layers" else 1)


def tell(story: Story, records: list[list[float]]) -> None:
    """Figures, shown by pytest -s and when the test fails."""
    times = sorted(float(line.split()[1]) for line in story.printed if line.startswith("commit "))
    conflicts = sum(line == "conflict" for line in story.printed)
    print(
        f"{len({record[-1] for record in records})} commits, {conflicts} conflicts,"
        f" p50 {times[len(times) // 2]:.3f} s, p99 {times[len(times) * 99 // 100]:.3f} s"
    )
