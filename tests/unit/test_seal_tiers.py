"""Seals on disk: how they are sorted, merged, proven and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from segment_writers import SegmentWriter, age, delete, flip

from sdc_guard import RunReader
from sdc_guard.store import seal_file, sealing_plan
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import Listing, listing, rank_folder, seal_path
from sdc_guard.store.writer import Health, Writer


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window is worth a seal, however few rows it has."""
    monkeypatch.setattr(sealing_plan, "ROWS_WORTH_A_SEAL", 1)


def names(run: Path, pattern: str, table: str = "layers") -> list[str]:
    return sorted(path.name for path in rank_folder(run, table, 0).glob(pattern))


def content(run: Path, table: str = "layers") -> list[Any]:
    with RunReader(run) as reader:
        assert reader.damaged == {}
        return reader.rows(f"SELECT step, layer, norm FROM {table} ORDER BY ALL")


def expected(first: int, last: int, count: int) -> list[Any]:
    return [(s, n, s + n / 1000) for s in range(first, last + 1) for n in range(count)]


def in_file(seal: Path, query: str) -> list[Any]:
    with duckdb.connect(str(seal), read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_rows_lie_by_window_layer_and_step(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in range(0, 2400, 400):
        writer.layers(first, first + 399, 3)
    (seal,) = seal_run(empty_run)
    found = in_file(seal, "SELECT step, layer FROM layers")
    assert found == sorted(found, key=lambda row: (row[0] // 1000, row[1], row[0]))
    assert len(found) == 2400 * 3


def test_digests_lie_by_window_layer_kind_and_step(empty_run: Path, rng: Any) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in (0, 900):
        steps = np.arange(first, first + 900).repeat(4)
        writer.write(
            "digests", steps, layer=np.tile([0, 0, 1, 1], 900), kind=["param", "grad"] * 1800,
            phase=["before"] * 3600, h=rng.integers(-(2**63), 2**63, 3600),
        )  # fmt: skip
    (seal,) = seal_run(empty_run)
    found = in_file(seal, "SELECT step, layer, kind FROM digests")
    assert found == sorted(found, key=lambda row: (row[0] // 1000, row[1], row[2], row[0]))


def test_rows_too_many_to_sort_at_once_are_sorted_all_the_same(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal_file, "_ROWS_AT_ONCE", 2500)
    writer = SegmentWriter(empty_run, "w")
    for first in range(-2000, 4000, 500):
        writer.layers(first, first + 499, 2)
    (seal,) = seal_run(empty_run)
    found = in_file(seal, "SELECT step // 1000, layer, step FROM layers")
    assert found == sorted(found)
    assert content(empty_run) == expected(-2000, 3999, 2)


@pytest.mark.usefixtures("small_windows")
def test_windows_are_sealed_and_sixteen_of_them_merged(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for window in range(17):
        for first in (0, 500):
            writer.layers(1000 * window + first, 1000 * window + first + 499, 1)
        seal_run(empty_run)
        assert content(empty_run) == expected(0, 1000 * window + 999, 1)
    assert "seal-00000000-00000031.duckdb" in names(empty_run, "seal-*")
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seal-*") == [
        "seal-00000000-00000031.duckdb",
        "seal-00000032-00000033.duckdb",
    ]
    assert names(empty_run, "seg-*") == []
    (tier, first, last, rows) = in_file(
        rank_folder(empty_run, "layers", 0) / "seal-00000000-00000031.duckdb",
        "SELECT tier, first_segment, last_segment, rows FROM contents",
    )[0]
    assert (tier, first, last, rows) == (1, 0, 31, 16_000)
    assert content(empty_run) == expected(0, 16_999, 1)


@pytest.mark.usefixtures("small_windows")
def test_parts_of_a_window_are_merged_when_it_is_over(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in (0, 100, 200, 300):
        writer.layers(first, first + 99, 1)
        if first in (100, 300):
            seal_run(empty_run)
    assert names(empty_run, "seal-*") == [
        "seal-00000000-00000001.duckdb", "seal-00000002-00000003.duckdb",
    ]  # fmt: skip
    for first in (1000, 1100):
        writer.layers(first, first + 99, 1)
    seal_run(empty_run)
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seal-*") == [
        "seal-00000000-00000003.duckdb", "seal-00000004-00000005.duckdb",
    ]  # fmt: skip
    assert content(empty_run) == expected(0, 399, 1) + expected(1000, 1199, 1)


@pytest.mark.usefixtures("small_windows")
def test_a_narrower_seal_outlives_the_wider_by_the_grace(empty_run: Path) -> None:
    test_parts = SegmentWriter(empty_run, "w")
    for first in (0, 100, 200, 300, 1000, 1100):
        test_parts.layers(first, first + 99, 1)
        if first in (100, 300):
            seal_run(empty_run)
    seal_run(empty_run)
    seal_run(empty_run)
    assert len(names(empty_run, "seal-*")) == 4
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*), count(DISTINCT step) FROM layers") == [(600, 600)]
        age(empty_run)
        seal_run(empty_run)
        assert len(names(empty_run, "seal-*")) == 2
        # the reader has listed files that are gone
        reader.refresh()
        assert reader.rows("SELECT count(*), count(DISTINCT step) FROM layers") == [(600, 600)]


@pytest.mark.usefixtures("small_windows")
def test_a_damaged_wide_seal_costs_nothing_while_the_narrower_are_there(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in (0, 100, 200, 300):
        writer.layers(first, first + 99, 1)
        if first in (100, 300):
            seal_run(empty_run)
    age(empty_run)
    seal_run(empty_run)  # the segments go
    assert names(empty_run, "seg-*") == []
    for first in (1000, 1100):
        writer.layers(first, first + 99, 1)
    seal_run(empty_run)
    wide = rank_folder(empty_run, "layers", 0) / "seal-00000000-00000003.duckdb"
    wide.write_bytes(wide.read_bytes()[:9000])
    age(empty_run)
    seal_run(empty_run)
    assert "seal-00000000-00000001.duckdb" in names(empty_run, "seal-*")
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*) FROM layers") == [(600,)]
        assert list(reader.damaged) == [wide]
        assert reader.troubles() == []  # not a row is missing


def test_a_seal_that_does_not_hold_the_rows_of_its_files_is_not_published(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.layers(0, 9, 2)
    writer.layers(10, 19, 2)
    monkeypatch.setattr(seal_file, "_slices", lambda *_: ["step <> 7"])
    with pytest.raises(OSError, match="does not hold the 40 rows"):
        seal_run(empty_run)
    monkeypatch.setattr(seal_file, "_slices", lambda *_: ["step <> 7", "step = 8"])
    with pytest.raises(OSError, match="does not hold the 40 rows"):  # as many, but not those
        seal_run(empty_run)
    assert names(empty_run, "*seal-*") == []
    assert content(empty_run) == expected(0, 19, 2)


def test_seals_of_a_resume_and_of_windows_that_come_again(empty_run: Path) -> None:
    with RunReader(empty_run) as reader:
        first = reader.run_file
    from sdc_guard.store.run_file import Attempt

    first.with_attempt(Attempt(2, 1500, 1.0)).write(empty_run)
    one, two = SegmentWriter(empty_run, "a"), SegmentWriter(empty_run, "b", attempt=2)
    for start in (0, 1000, 2000):
        one.steps(start, start + 999)
    for start in (1500, 2500):
        two.steps(start, start + 999, shift=0.5)
    seal_run(empty_run)
    delete(rank_folder(empty_run, "steps", 0).glob("seg-*"))
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*), min(step), max(step) FROM steps") == [(3500, 0, 3499)]
        assert reader.rows("SELECT count(*) FROM steps WHERE loss <> step * step") == [(2000,)]
        assert reader.troubles() == []
        parts = {part.writer: part for part in reader.writers()[0]}
    assert (parts["a"].rows, parts["b"].rows) == (3000, 2000)
    assert (parts["b"].first_step, parts["b"].last_step, parts["b"].backward) == (1500, 3499, 0)


def test_no_table_of_a_seal_has_a_key_or_an_index(empty_run: Path) -> None:
    writer = Writer(empty_run, 0, Health())
    for step in (1, 2):
        for table in TABLES:
            writer.append(table, attempt=1, step=step)
        assert writer.flush()
    writer.close()
    seals = seal_run(empty_run)
    assert len(seals) == len(TABLES)
    for seal in seals:
        assert in_file(seal, "SELECT count(*) FROM duckdb_constraints()") == [(0,)]
        assert in_file(seal, "SELECT count(*) FROM duckdb_indexes()") == [(0,)]
        assert not seal.with_name(seal.name + ".wal").exists()


def test_a_small_seal_is_a_small_file(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.steps(0, 9)
    writer.steps(10, 19)
    (seal,) = seal_run(empty_run)
    assert seal.stat().st_size < 130_000  # with the blocks of DuckDB's default it is 530 kB


def test_a_seal_of_before_there_were_contents_is_read_and_left_alone(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, None)
    paths = [writer.steps(first, first + 9) for first in (0, 10, 20, 30)]
    old = seal_path(paths[0].parent, 0, 1)
    with duckdb.connect(str(old)) as connection:
        connection.execute(
            "CREATE TABLE steps AS SELECT * FROM"
            f" read_parquet(['{paths[0]}', '{paths[1]}'], hive_partitioning = false)"
        )
    age(empty_run)
    assert [seal.name for seal in seal_run(empty_run)] == ["seal-00000002-00000003.duckdb"]
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "*", "steps") == [
        "seal-00000000-00000001.duckdb", "seal-00000002-00000003.duckdb",
    ]  # fmt: skip
    with RunReader(empty_run) as reader:
        found = reader.rows("SELECT step, loss FROM steps ORDER BY step")
        assert found == [(step, float(step * step)) for step in range(40)]
        assert reader.troubles() == []
        assert reader.of_writer("w").num_rows == 0


def test_what_a_seal_covers_is_kept_while_the_seal_is_damaged(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in (0, 100, 200):
        writer.layers(first, first + 99, 40)
    (seal,) = seal_run(empty_run)
    sound = seal.read_bytes()
    age(empty_run)
    for place in range(20_000, len(sound), len(sound) // 7):
        flip(seal, place)
        age(empty_run)
        damaged = seal_file.sound_rows(seal_file.connect(empty_run / "spill"), seal, "layers") < 0
        if damaged:
            seal_run(empty_run)
            assert len(names(empty_run, "seg-*")) == 3
        seal.write_bytes(sound)
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seg-*") == []


def test_live_files_are_those_that_nothing_wider_covers() -> None:
    def path(name: str) -> Path:
        return Path(f"{name}.{'duckdb' if 'seal' in name else 'parquet'}")

    found = Listing(
        {n: path(f"seg{n}") for n in (0, 3, 5, 6, 9)},
        {span: path(f"seal{span}") for span in ((0, 1), (2, 3), (0, 3), (5, 5))},
    )
    assert list(found.live()) == [(0, 3), (5, 5), (6, 6), (9, 9)]
    assert found.live_seals() == [path("seal(0, 3)"), path("seal(5, 5)")]
    assert found.live_segments() == [path("seg6"), path("seg9")]
    assert found.holes() == [(4, 4), (7, 8)]
    assert listing(Path("nowhere")).holes() == []
