"""Exports: what plain DuckDB finds in them is what a query of the run gives."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from traces import gradient, make_run, step, whole_steps, write

from sdc_guard import RunReader
from sdc_guard.errors import UsageError
from sdc_guard.store.export import EXPORTED, export_duckdb, export_parquet
from sdc_guard.store.run_file import Attempt
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import rank_folder, segment_path

TABLES = [table for table in EXPORTED if table != "meta"]
# in a process without SDC Guard; hash() tells NaN from NULL and every bit of a number
PLAIN = """
import json, sys, duckdb
source = sys.argv[1]
connection = duckdb.connect(source, read_only=True) if source.endswith("duckdb") else duckdb
name = "{}" if connection is not duckdb else "'" + source.replace("'", "''") + "/{}.parquet'"
found = {}
for table in sys.argv[2:]:
    rows = f"SELECT count(*), sum(hash(t))::VARCHAR FROM {name.format(table)} AS t"
    columns = f"DESCRIBE SELECT * FROM {name.format(table)}"
    found[table] = [
        list(connection.sql(rows).fetchall()[0]),
        [list(row[:2]) for row in connection.sql(columns).fetchall()],
    ]
assert "sdc_guard" not in sys.modules
print(json.dumps(found))
"""


def by_plain_duckdb(source: Path, tables: list[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(source), *tables],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def by_the_reader(reader: RunReader, tables: list[str]) -> Any:
    return {
        table: [
            list(reader.rows(f"SELECT count(*), sum(hash(t))::VARCHAR FROM {table} AS t")[0]),
            [list(row[:2]) for row in reader.rows(f"DESCRIBE SELECT * FROM {table}")],
        ]
        for table in tables
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two attempts, two ranks, values that are none, seals and segments."""
    made = make_run(tmp_path / "it's a run", Attempt(1, 0, 0.0), Attempt(2, 6, 5.0, {}, 0.5))
    write(made, [*whole_steps(0, 9), *(gradient(n, 2, n / 3) for n in range(9))])
    write(made, [gradient(n, 2, n / 3) for n in range(6)], rank=3)
    write(made, [step(2, loss=math.nan), step(3, loss=None), step(4, loss=-math.inf)], rank=3)
    seal_run(made)
    write(made, whole_steps(6, 12, attempt=2))
    write(made, [("events", {"step": 1, "kind": "note", "detail": 'ß "\n\x00'})])
    return made


def test_a_file_for_plain_duckdb(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "it's.duckdb"
    tables = [*TABLES, "whole_layers", "whole_steps"]
    with RunReader(run) as reader:
        export_duckdb(reader, target)
        assert by_plain_duckdb(target, tables) == by_the_reader(reader, tables)
        assert reader.rows("SELECT count(*) FROM steps WHERE rank = 0") == [(13,)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_parquet_files(run: Path, tmp_path: Path) -> None:
    with RunReader(run) as reader:
        export_parquet(reader, tmp_path / "it's")
        assert by_plain_duckdb(tmp_path / "it's", TABLES) == by_the_reader(reader, TABLES)
    assert {path.name for path in (tmp_path / "it's").iterdir()} == {
        f"{table}.parquet" for table in EXPORTED
    }


def test_an_earlier_attempt(run: Path, tmp_path: Path) -> None:
    with RunReader(run, attempt=1) as reader:
        export_duckdb(reader, tmp_path / "one.duckdb")
    with duckdb.connect(str(tmp_path / "one.duckdb"), read_only=True) as plain:
        found = plain.execute("SELECT count(*), max(attempt) FROM steps WHERE rank = 0").fetchall()
        assert found == [(10, 1)]
        assert plain.execute("SELECT attempt FROM meta").fetchall() == [(1,)]


def test_meta_tells_of_damage(run: Path, tmp_path: Path) -> None:
    path = segment_path(rank_folder(run, "steps", 0), 1)
    path.write_bytes(path.read_bytes()[:-9])
    with RunReader(run) as reader:
        export_duckdb(reader, tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as plain:
        found = plain.execute(
            "SELECT run, format_version, attempt, world_size, damaged_files FROM meta"
        ).fetchall()
    ((name, version, attempt, world_size, (damaged,)),) = found
    assert (name, version, attempt, world_size) == ("it's a run", 1, 2, 1)
    assert damaged.startswith("trace/steps/rank=00000/seg-00000001.parquet: no whole segment")


def test_an_empty_run(empty_run: Path, tmp_path: Path) -> None:
    with RunReader(empty_run) as reader:
        export_duckdb(reader, tmp_path / "x.duckdb")
        export_parquet(reader, tmp_path / "x")
        for source in (tmp_path / "x.duckdb", tmp_path / "x"):
            assert by_plain_duckdb(source, TABLES) == by_the_reader(reader, TABLES)


@pytest.mark.parametrize("export", [export_duckdb, export_parquet])
def test_what_is_there_is_replaced_only_when_asked(
    run: Path, tmp_path: Path, export: Callable[..., None]
) -> None:
    target = tmp_path / "x.duckdb"
    with RunReader(run) as reader:
        export(reader, target)
        before = {
            path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()
        }
        with pytest.raises(UsageError, match=r"there already.*--force"):
            export(reader, target)
        for path, content in before.items():
            assert path.read_bytes() == content
        write(run, whole_steps(13, 14, attempt=2))
        reader.refresh()
        export(reader, target, replace=True)
    with duckdb.connect() as plain:
        if target.is_file():
            plain.execute(f"ATTACH '{target}' AS exported (READ_ONLY); USE exported")
        table = "steps" if target.is_file() else f"'{target}/steps.parquet'"
        assert plain.execute(f"SELECT max(step) FROM {table}").fetchall() == [(14,)]


def test_a_folder_with_something_else_is_never_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("only copy", encoding="utf-8")
    with RunReader(run) as reader:
        for target, export in (
            (tmp_path / "mine", export_parquet),
            (tmp_path / "mine" / "thesis.txt", export_parquet),
            (tmp_path / "mine", export_duckdb),
        ):
            with pytest.raises(UsageError):
                export(reader, target, replace=True)
        with pytest.raises(UsageError, match="no such folder"):
            export_duckdb(reader, tmp_path / "nowhere" / "x.duckdb")
        with pytest.raises(UsageError, match="no such folder"):
            export_parquet(reader, tmp_path / "nowhere" / "x")
    assert (tmp_path / "mine" / "thesis.txt").read_text(encoding="utf-8") == "only copy"
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "thesis.txt"]


@pytest.mark.parametrize("export", [export_duckdb, export_parquet])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    run: Path,
    tmp_path: Path,
    export: Callable[..., None],
    no_space: Callable[[int], AbstractContextManager[None]],
) -> None:
    (tmp_path / "out").mkdir()
    with RunReader(run) as reader:
        with no_space(1000), pytest.raises(UsageError) as caught:
            export(reader, tmp_path / "out" / "x")
        assert "\n" not in str(caught.value)
        assert "the export failed, nothing is left of it" in str(caught.value)
        assert list((tmp_path / "out").iterdir()) == []
        export(reader, tmp_path / "out" / "x")
        assert reader.damaged == {}
