"""Runs in a lake with a real PostgreSQL as its catalog: what is committed, and what is read."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lake_server
import pytest
from conftest import Answer, guard_command
from lake_server import Server, Worker, lake_python

from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import listing, rank_folder, ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import traces

pytestmark = pytest.mark.postgres

VIEWS = ("whole_layers", "whole_steps", "layer_names", "attempts")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    lake_server.require()
    with lake_server.server() as server:
        yield server


class LakeUnderTest:
    """A lake for all tests, and a process that uses it. Each test has runs of its own name."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.catalog = server.catalog("lake")
        self.data = folder / "lake"
        self.worker = Worker()

    def arguments(self, run: Path, *options: object) -> list[object]:
        """Of an upload."""
        return ["upload", run, "--catalog", self.catalog, "--data", self.data, *options]

    def upload(self, run: Path, *options: object) -> Answer:
        done = self.worker.command(*self.arguments(run, *options))
        assert done.code == 0, done.err
        return done

    def location(self, run: str) -> str:
        return f"ducklake:{self.catalog}?run={run}"

    def sql(self, run: str, query: str) -> list[list[str]]:
        """By sdc-guard sql, without the header."""
        answer = self.worker.command("sql", self.location(run), query)
        assert answer.code == 0, answer.err
        return list(csv.reader(io.StringIO(answer.out)))[1:]

    def raw(self, query: str) -> list[list[Any]]:
        """By DuckDB alone, of all runs."""
        found: list[list[Any]] = json.loads(self.worker.script(_RAW, self.catalog, query))
        return found


@pytest.fixture(scope="module")
def lake(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeUnderTest]:
    made = LakeUnderTest(postgres, tmp_path_factory.mktemp("lake"))
    yield made
    made.worker.close()


_RAW = """
import json, sys
from sdc_guard.lake.connection import connect
from sdc_guard.lake.location import Lake
connection = connect(Lake.of(sys.argv[1]), read_only=True)
connection.execute("USE lake")
print(json.dumps([list(row) for row in connection.execute(sys.argv[2]).fetchall()]))
"""


def resumed_run(folder: Path) -> Path:
    """Three ranks, two attempts, sealed in part, values that compare badly."""
    run = traces.make_run(folder, Attempt(1, 0, 5.5), Attempt(2, 6, 6.25))
    for rank in range(3):
        traces.write(run, traces.whole_steps(0, 3), rank=rank)
        traces.write(run, traces.whole_steps(4, 8), rank=rank)
    seal_run(run)
    odd = [float("nan"), float("inf"), -0.0, 5e-324]
    traces.write(run, traces.whole_steps(6, 9, attempt=2))
    traces.write(
        run,
        [traces.gradient(9, layer, norm, attempt=2) for layer, norm in enumerate(odd)]
        + [("events", {"step": 9, "kind": "end", "detail": "a 'quoted'\nword"}), traces.step(10)],
    )
    return run


def test_every_table_and_view_reads_as_from_the_folder(lake: LakeUnderTest, tmp_path: Path) -> None:
    run = resumed_run(tmp_path / "all")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    lake.upload(run)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    names = [*TABLES, *(f"every.{name}" for name in TABLES), *VIEWS]
    counts = json.loads(lake.worker.script(_SAME, run, lake.location("all"), *names))
    assert counts["every.steps"] == 3 * 9 + 4 + 1
    assert counts["steps"] == 3 * 6 + 4
    assert counts["layers"] == 4
    assert counts["whole_steps"] == 1


_SAME = """
import json, sys
from collections import Counter
from sdc_guard.store.opening import open_run
with open_run(sys.argv[1]) as folder, open_run(sys.argv[2]) as lake:
    assert folder.run_file == lake.run_file and not lake.damaged
    counts = {}
    for name in sys.argv[3:]:
        one, two = (reader.arrow(f"SELECT * FROM {name}") for reader in (folder, lake))
        assert one.schema.names == two.schema.names, (name, one.schema, two.schema)
        assert one.schema.types == two.schema.types, (name, one.schema, two.schema)
        # repr tells NaN, infinities and the sign of zero
        rows = [Counter(map(repr, table.to_pylist())) for table in (one, two)]
        assert rows[0] == rows[1], (name, rows[0] - rows[1], rows[1] - rows[0])
        counts[name] = one.num_rows
    early = [open_run(place, 1).rows("SELECT count(*) FROM steps") for place in sys.argv[1:3]]
    assert early[0] == early[1] == [(3 * 9 + 1,)], early
    lake.attach("other", folder)
    assert lake.rows("SELECT count(*) FROM other.steps") == [(counts["steps"],)]
print(json.dumps(counts))
"""


def test_what_lies_only_in_a_seal_is_uploaded_and_the_rest_of_a_half_uploaded_one(
    lake: LakeUnderTest, tmp_path: Path
) -> None:
    run = traces.make_run(tmp_path / "sealed")
    traces.write(run, traces.whole_steps(0, 4))
    lake.upload(run)  # the first segment, before it is sealed
    twice = [traces.step(4, loss=0.2)] * 2  # rows like one that is uploaded
    nan = [traces.gradient(n, 0, float("nan")) for n in (7, 7)]
    traces.write(run, [*traces.whole_steps(5, 9), *twice, *nan])
    traces.write(run, [*traces.whole_steps(10, 12), *nan])
    seal_run(run)
    for table_name in TABLES:
        for rank in ranks(run, table_name):
            found = listing(rank_folder(run, table_name, rank))
            assert found.seals
            for path in found.segments.values():
                path.unlink()
    lake.upload(run)
    lake.upload(run)
    assert lake.sql("sealed", "SELECT count(*), count(DISTINCT step) FROM steps") == [["15", "13"]]
    assert lake.sql("sealed", "SELECT count(*), sum(isnan(norm)::INT) FROM layers") == [["4", "4"]]
    assert lake.sql("sealed", "SELECT count(*) FROM digests") == [[str(13 * 8)]]
    assert lake.raw(_RECORDS.format("steps")) == [[0, 0, 5, False], [1, 2, 10, True]]
    assert lake.raw(_RECORDS.format("layers")) == [[0, 1, 4, True]]


_RECORDS = """
    SELECT first, last, rows, crc IS NULL FROM uploaded
    WHERE run LIKE 'sealed-%' AND table_name = '{}' ORDER BY first
"""


def test_of_a_wider_seal_only_what_the_narrower_ones_lacked(
    lake: LakeUnderTest, tmp_path: Path
) -> None:
    run = traces.make_run(tmp_path / "wider")
    for first in (0, 5):
        traces.write(run, traces.whole_steps(first, first + 1))
        traces.write(run, traces.whole_steps(first + 2, first + 4))
        seal_run(run)
        if first == 0:
            lake.upload(run)
    folder = rank_folder(run, "steps", 0)
    assert sorted(listing(folder).seals) == [(0, 1), (2, 3)]
    for path in folder.iterdir():
        path.unlink()
    # the same rows in one seal
    again = traces.make_run(tmp_path / "again")
    for first in (0, 2, 5, 7):
        traces.write(again, traces.whole_steps(first, first + (1 if first in (0, 5) else 2)))
    seal_run(again)
    (seal,) = listing(rank_folder(again, "steps", 0)).seals.values()
    shutil.copy(seal, folder)
    lake.upload(run)
    assert lake.sql("wider", "SELECT count(*), count(DISTINCT step) FROM steps") == [["10", "10"]]


def test_a_damaged_file_costs_itself_alone_and_is_told(lake: LakeUnderTest, tmp_path: Path) -> None:
    run = traces.make_run(tmp_path / "damaged")
    for number in range(3):
        traces.write(run, [traces.step(number)])
    path = listing(rank_folder(run, "steps", 0)).segments[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = lake.upload(run)
    assert f"damaged, not uploaded: {path}" in done.err
    assert lake.sql("damaged", "SELECT step FROM steps ORDER BY step") == [["0"], ["2"]]
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    lake.upload(run)
    assert lake.sql("damaged", "SELECT step FROM steps ORDER BY step") == [["0"], ["1"], ["2"]]


def test_nodes_with_ranks_of_their_own_and_two_runs_of_one_name(
    lake: LakeUnderTest, tmp_path: Path
) -> None:
    run = traces.make_run(tmp_path / "nodes", Attempt(1, 0, 1.0))
    other = traces.make_run(tmp_path / "other" / "nodes", Attempt(1, 0, 2.0))
    for rank in (0, 1, 9):
        traces.write(run, [traces.step(0)], rank=rank)
    traces.write(other, [traces.step(7)])
    lake.upload(run, "--ranks", "0-1")
    assert lake.sql("nodes", "SELECT rank FROM steps ORDER BY rank") == [["0"], ["1"]]
    lake.upload(run, "--ranks", "9,12-15")
    lake.upload(other)
    both = lake.raw("SELECT DISTINCT run FROM runs WHERE name = 'nodes' ORDER BY run")
    assert len(both) == 2
    answer = lake.worker.command("sql", lake.location("nodes"), "SELECT 1")
    assert answer.code == 2
    assert "several runs" in answer.err
    assert both[0][0] in answer.err
    counts = [lake.sql(name, "SELECT count(*) FROM steps") for (name,) in both]
    assert sorted(counts) == [[["1"]], [["3"]]]


def test_a_later_attempt_and_a_later_reader(lake: LakeUnderTest, tmp_path: Path) -> None:
    run = traces.make_run(tmp_path / "later", Attempt(1, 0, 1.0))
    traces.write(run, traces.whole_steps(0, 9))
    lake.upload(run)
    assert lake.worker.script(_OPENED, lake.location("later")) == "[(10,)]\n"
    RunFile.read(run).with_attempt(Attempt(2, 5, 2.0)).write(run)
    traces.write(run, traces.whole_steps(5, 6, attempt=2))
    lake.upload(run)
    assert lake.worker.script(_LATER).splitlines() == ["[(10,)]", "[(7,)]", "[(12,)]"]


# a reader that stays open between scripts
_OPENED = """
import builtins, sys
from sdc_guard.store.opening import open_run
builtins.kept = open_run(sys.argv[1])
print(kept.rows("SELECT count(*) FROM steps"))
builtins.first = kept.newest_snapshot()
"""

_LATER = """
import builtins, time
with kept as reader:
    while reader.newest_snapshot() == first:
        time.sleep(0.05)
    print(reader.rows("SELECT count(*) FROM steps"), flush=True)
    reader.refresh()
    print(reader.rows("SELECT count(*) FROM steps"))
    print(reader.rows("SELECT count(*) FROM every.steps"))
del builtins.kept, builtins.first
"""


def test_the_dashboard_and_the_report_read_a_lake(lake: LakeUnderTest, tmp_path: Path) -> None:
    run = resumed_run(tmp_path / "shown")
    lake.upload(run)
    location = lake.location("shown")
    assert lake.worker.script(_SHOWN, run, location) == "same\n"
    report = lake.worker.command("report", location, module="forensics.cli")
    assert report.code == 0, report.err
    assert "10 steps recorded (0 to 9), 4 layers, 2 attempts." in report.out
    refused = lake.worker.command("run", location, module="forensics.cli")
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1


_SHOWN = """
import sys
from app import queries
from app.source import Source
folder, lake = (Source(place) for place in sys.argv[1:])
version = lake.version()
assert version and version == lake.version()
for part in (queries.newest_step, queries.coverage, queries.incidents, queries.checkpoints):
    one, two = part(folder.reader()), part(lake.reader())
    assert repr(one) == repr(two), (one, two)
print("same")
"""


def test_maintenance_by_ducklake_changes_no_row_and_an_open_reader_follows(
    lake: LakeUnderTest, tmp_path: Path
) -> None:
    run = traces.make_run(tmp_path / "kept")
    for first in (0, 3, 6):
        traces.write(run, traces.whole_steps(first, first + 2))
        lake.upload(run)
    printed = lake.worker.script(_MAINTAIN, lake.catalog, lake.location("kept"))
    assert printed.split() == ["72", "72"]
    lake.upload(run)
    traces.write(run, traces.whole_steps(9, 9))
    lake.upload(run)
    count = "SELECT count(*), count(DISTINCT (step, phase, layer)) FROM digests"
    assert lake.sql("kept", count) == [["80", "80"]]


_MAINTAIN = """
import sys
from sdc_guard.lake.connection import connect
from sdc_guard.lake.location import Lake
from sdc_guard.store.opening import open_run
with open_run(sys.argv[2]) as reader:
    print(reader.rows("SELECT count(*) FROM digests")[0][0])
    with connect(Lake.of(sys.argv[1])) as connection:
        for call in (
            "ducklake_flush_inlined_data('lake')",
            "ducklake_merge_adjacent_files('lake')",
            "ducklake_expire_snapshots('lake', older_than => now())",
            "ducklake_cleanup_old_files('lake', cleanup_all => true)",
            "ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL 1 DAY)",
        ):
            connection.execute(f"SELECT count(*) FROM {call}").fetchall()
    print(reader.rows("SELECT count(*) FROM digests")[0][0])
"""


def test_a_catalog_that_fails_is_one_line_and_is_tried_again(
    postgres: Server, lake: LakeUnderTest, tmp_path: Path
) -> None:
    run = traces.make_run(tmp_path / "failing")
    traces.write(run, [traces.step(0)])
    command = lake.arguments(run)
    lake.upload(traces.make_run(tmp_path / "before"))
    lake.worker.script(_SOURCE, lake.location("before"))
    postgres.stop()
    try:
        assert "LakeUnavailable the lake cannot be used" in lake.worker.script(_REFUSED)
        failed = lake.worker.command(*command)
        assert failed.code == 6
        assert len(failed.err.splitlines()) == 1
        assert "the lake cannot be used" in failed.err
        watching = lake_python("-m", "sdc_guard.cli", *command, "--watch", "--every", "0.1")
        assert watching.stderr is not None
        assert watching.stdout is not None
        assert "trying again" in watching.stderr.readline()
    finally:
        postgres.start()
    try:
        assert lake.worker.script(_PATIENT) == "True [(0,)]\n"
        assert "1 rows of 1 segments" in watching.stdout.readline()
    finally:
        watching.kill()
        _, err = watching.communicate()
    assert "Traceback" not in err
    assert lake.sql("failing", "SELECT count(*) FROM steps") == [["1"]]


# a page's reader that stays open between scripts
_SOURCE = """
import builtins, sys
from app.source import Source
builtins.kept = Source(sys.argv[1])
builtins.reader = kept.reader()
"""

_REFUSED = """
import time
from sdc_guard.errors import SdcGuardError
while True:
    try:
        reader.refresh()
    except SdcGuardError as error:
        print(type(error).__name__, error)
        break
    time.sleep(0.05)
"""

_PATIENT = """
import builtins, time
until = time.monotonic() + 60
while not kept.version() and time.monotonic() < until:
    time.sleep(0.05)
count = kept.reader().rows("SELECT count(*) FROM steps")
print(bool(kept.version()), count)
del builtins.kept, builtins.reader
"""


def test_without_the_extension_it_is_one_line(tmp_path: Path) -> None:
    run = traces.make_run(tmp_path / "alone")
    answer = guard_command("upload", run, "--catalog", "postgres:dbname=none")
    assert answer.code == 2
    assert "has no extension ducklake" in answer.err
    assert len(answer.err.splitlines()) == 1
