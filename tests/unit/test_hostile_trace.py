"""A file in a trace may hold anything: it costs itself, is told, and nothing of it is executed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner

from sdc_guard import Guard, RunReader
from sdc_guard.cli import main
from sdc_guard.store import publishing
from sdc_guard.store.left_behind import fold
from sdc_guard.store.ring import LARGEST, framed, ring_folder
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, ranks
from sdc_guard.store.writer import Health, Writer

STEPS = range(10)


@pytest.fixture
def run(empty_run: Path) -> Path:
    for part in (STEPS[:5], STEPS[5:]):
        writer = Writer(empty_run, 0, Health())
        for step in part:
            writer.append("steps", attempt=1, step=step, loss=1.0)
        writer.close()
    return empty_run


def segment(run: Path, content: bytes, number: int = 2) -> Path:
    path = rank_folder(run, "steps", 0) / f"seg-{number:08d}.parquet"
    path.write_bytes(content)
    return path


def commands_work(run: Path, *, count: int = len(STEPS)) -> str:
    """Every command answers with what is sound; what they wrote to stderr."""
    told = ""
    query = "SELECT count(*) AS n FROM steps"
    export = str(run.parent / "out.duckdb")
    for arguments in (
        ["sql", str(run), query],
        ["watch", "--once", str(run)],
        ["export", "--force", str(run), export],
        ["compact", str(run)],
        ["sql", str(run), query],
    ):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, (arguments, done.output, done.exception)
        assert "Traceback" not in done.output
        if arguments[0] == "sql":
            assert done.stdout == f"n\n{count}\n"
        told += done.stderr
    return told


def table(**columns: list[Any]) -> pa.Table:
    return pa.table({"attempt": pa.array([1], pa.int32()), "step": [99], **columns})


def test_the_name_of_a_column_is_not_executed(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "written"
    name = f"1 AS attempt; COPY (SELECT 1) TO '{out}'; SELECT 1 AS step"
    segment(run, encode(pa.table({name: [1]}), writer="a", rows_before=0))
    assert "no segment of this table" in commands_work(run)
    assert not out.exists()
    segment(run, encode(table(**{name: [1], 'a"b': [2]}), writer="a", rows_before=0), 3)
    commands_work(run, count=len(STEPS) + 1)
    assert not out.exists()


def test_a_view_in_a_seal_is_not_executed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 77)
    seal = rank_folder(run, "steps", 0) / "seal-00000002-00000003.duckdb"
    with duckdb.connect(str(seal)) as connection:
        connection.execute(
            "CREATE VIEW steps AS SELECT 1::INTEGER AS attempt, 50::BIGINT AS step,"
            f" length(content)::DOUBLE AS loss FROM read_text('{secret}')"
        )
        connection.execute("CREATE VIEW contents AS SELECT * FROM range(10000000000000)")
    assert "holds no table steps" in commands_work(run)
    with RunReader(run) as reader:
        assert reader.rows("SELECT count(*) FROM steps WHERE loss = 77") == [(0,)]


def test_foreign_segments(run: Path) -> None:
    """Each costs itself and is told; one with more columns has sound rows."""
    more = segment(run, encode(table(my_col=[1], rank=[7]), writer="a", rows_before=0), 2)
    foreign = {
        "text": encode(pa.table({"step": ["a"], "attempt": ["b"]})),
        "no step": encode(pa.table({"loss": [1.0]})),
        "loss as text": encode(table(loss=["text"])),
        "rows before": encode(table(), writer="a", rows_before="zz"),  # type: ignore[arg-type]
        "no parquet": b"PAR1 nothing",
        "empty": b"",
    }
    paths = {kind: segment(run, foreign[kind], n) for n, kind in enumerate(foreign, 3)}
    told = commands_work(run, count=len(STEPS) + 1)
    assert "missing" in told
    assert more.name not in told
    with RunReader(run) as reader:
        reader.rows("SELECT count(*) FROM steps")
        assert set(reader.damaged) == set(paths.values())


def test_a_newer_versions_columns_are_not_lost_by_sealing(run: Path) -> None:
    path = segment(run, encode(table(novel=[5]), writer="a", rows_before=0))
    seal_run(run)
    assert path.exists()
    assert (path.parent / "seal-00000000-00000001.duckdb").exists()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    "make", [a_pipe, a_link_to_nothing, a_link_to_itself, a_folder, a_huge_file]
)
def test_what_is_no_file(run: Path, make: Callable[[Path], None]) -> None:
    """In the place of a segment, of a ring and of a rank's folder."""
    ring_folder(run).mkdir(exist_ok=True)
    make(rank_folder(run, "steps", 0) / "seg-00000002.parquet")
    make(ring_folder(run) / "rank=00000-aa.ring")
    make(rank_folder(run, "steps", 1))
    commands_work(run)


def test_seals_that_are_no_files(run: Path) -> None:
    for number, make in enumerate((a_link_to_nothing, a_link_to_itself, a_folder), 5):
        make(rank_folder(run, "steps", 0) / f"seal-{number:08d}-{number:08d}.duckdb")
    commands_work(run)


FRAMES: list[Any] = [
    ["rows", "steps", 1, 5],
    ["rows", ["steps"], 1, {}],
    ["rows", "steps", 30_000_000, {"step": 1, "attempt": 1}],
    ["rows", "steps", 1, {"step": ["(1f8,", b"12345678", [1]]}],
    ["rows", "steps", 1, {"step": ["|O", b"12345678", [1]]}],
    ["rows", "nowhere", 1, {"step": 1}],
    ["after", 1, 5, None, ["param"], [2**40], b"\0" * 24],
    ["before", 1, 2],
    ["before", *[None] * 13, b"\0" * 4, None, 1, True, [([2**63], b"", False)], [], [], b""],
    {"a": 1},
    [],
    7,
    None,
]


def test_frames_that_are_none(run: Path) -> None:
    """Each at the start of a ring of its own, whose second frame is sound."""
    ring_folder(run).mkdir(exist_ok=True)
    rings = []
    for number, content in enumerate(FRAMES):
        sound = ["rows", "steps", 1, {"attempt": 1, "step": 70 + number, "loss": 1.0}]
        ring = ring_folder(run) / f"rank=00000-a{number}.ring"
        ring.write_bytes(framed(0, msgpack.packb(content)) + framed(1, msgpack.packb(sound)))
        rings.append(ring)
    commands_work(run, count=len(STEPS) + len(FRAMES))
    assert [FRAMES[n] for n, ring in enumerate(rings) if ring.exists()] == []
    with RunReader(run) as reader:
        steps = {step for (step,) in reader.rows("SELECT step FROM steps")}
    assert [one for n, one in enumerate(FRAMES) if 70 + n not in steps] == []


def test_rings_of_no_rank(run: Path) -> None:
    ring_folder(run).mkdir(exist_ok=True)
    row = msgpack.packb(["rows", "steps", 1, {"attempt": 1, "step": 70}])
    for name in ("rank=²-a.ring", "rank=1099511627776-a.ring", "rank=-1-a.ring"):
        (ring_folder(run) / name).write_bytes(framed(0, row))
        assert fold(run) == 0
    commands_work(run)


def test_absurd_numbers_are_no_segments(run: Path) -> None:
    folder = rank_folder(run, "steps", 0)
    for name in (
        "seal-00000000-99999999999999999999.duckdb",
        "seal-00000005-00000002.duckdb",
        "seg-99999999999999999999.parquet",
    ):
        (folder / name).write_bytes(b"x")
    (run / "trace" / "steps" / "rank=1099511627776").mkdir()
    (folder / ".seal-x.tmp").mkdir()
    assert ranks(run, "steps") == [0]
    writer = Writer(run, 0, Health())
    writer.append("steps", attempt=1, step=10)
    writer.close()
    assert (folder / "seg-00000002.parquet").exists()
    commands_work(run, count=len(STEPS) + 1)


def test_a_seal_of_another_rank_deletes_nothing(run: Path) -> None:
    writer = Writer(run, 3, Health())
    for step in range(200):
        writer.append("steps", attempt=1, step=step)
    writer.close()
    seal_run(run, at_least=1)
    (foreign,) = rank_folder(run, "steps", 3).glob("seal-*")
    own = Writer(run, 0, Health())
    own.append("steps", attempt=1, step=10)
    own.close()
    path = rank_folder(run, "steps", 0) / "seg-00000002.parquet"
    copy = path.with_name("seal-00000002-00000002.duckdb")
    copy.write_bytes(foreign.read_bytes())
    os.utime(copy, (0, 0))
    seal_run(run)
    assert path.exists()


def test_a_number_that_was_sealed_meanwhile_is_not_used(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may stall between choosing its segment's number and publishing it."""
    seal_run(run)
    folder = rank_folder(run, "steps", 0)
    for path in folder.glob("seg-*"):
        path.unlink()
    numbers = iter([1, 2])
    monkeypatch.setattr(publishing, "next_number", lambda _: next(numbers))
    rows = table().cast(
        pa.schema([TABLES["steps"].field("attempt"), TABLES["steps"].field("step")])
    )
    assert publishing.publish_rows(run, "steps", 0, rows, writer="w", rows_before=0) == 2
    assert sorted(path.name for path in folder.glob("seg-*")) == ["seg-00000002.parquet"]
    with RunReader(run) as reader:
        assert reader.rows("SELECT max(step) FROM steps") == [(99,)]


def test_a_training_resumes_whatever_lies_there(run: Path) -> None:
    ring_folder(run).mkdir(exist_ok=True)
    for number, make in enumerate((a_pipe, a_link_to_nothing, a_huge_file), 7):
        make(ring_folder(run) / f"rank=00000-b{number}.ring")
        for name in ("incidents", "steps"):
            folder = rank_folder(run, name, 0)
            folder.mkdir(parents=True, exist_ok=True)
            make(folder / f"seg-{number:08d}.parquet")
            a_link_to_nothing(folder / f"seal-{number + 10:08d}-{number + 11:08d}.duckdb")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (run / "run.json").unlink()
    with Guard(model, optimizer, run=run) as first:
        pass
    with Guard(model, optimizer, run=run, first_step=10) as guard:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert (first.health.dropped, guard.health.dropped) == (0, 0)
    with RunReader(run) as reader:
        assert reader.rows("SELECT max(step) FROM steps") == [(10,)]


def test_a_ring_is_no_larger_than_rings_are(run: Path) -> None:
    ring_folder(run).mkdir(exist_ok=True)
    path = ring_folder(run) / "rank=00000-aa.ring"
    path.touch()
    os.truncate(path, LARGEST + 32)
    assert fold(run) == 0
    assert path.exists()


def test_sql_writes_nothing(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    for query in (f"COPY (SELECT 1) TO '{out}'", "SELECT 1; CREATE TABLE x (a INT)"):
        done = CliRunner().invoke(main, ["sql", str(run), query])
        assert (done.exit_code, done.stdout) == (2, "")
        assert "only a query that reads" in done.stderr
    assert not out.exists()
    for query in ("SHOW TABLES", "DESCRIBE steps", "FROM steps", "EXPLAIN SELECT 1"):
        assert CliRunner().invoke(main, ["sql", str(run), query]).exit_code == 0
