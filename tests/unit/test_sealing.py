"""Sealing: the rows stay the same, whatever is folded, deleted or damaged on the way."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdc_guard import RunReader
from sdc_guard.store import sealing
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.sealing import GRACE_SECONDS, seal_run
from sdc_guard.store.segments import (
    listing,
    next_number,
    rank_folder,
    seal_path,
    seals_over,
    segment_path,
)
from sdc_guard.store.writer import Health, Writer


def publish_steps(run: Path, *steps: int, rank: int = 0) -> None:
    """One segment of `steps` that holds these."""
    writer = Writer(run, rank, Health())
    for step in steps:
        writer.append("steps", attempt=1, step=step, loss=step / 7)
    writer.close()


def age(run: Path, seconds: float = GRACE_SECONDS + 1) -> None:
    """Make every seal that much older."""
    past = time.time() - seconds
    for seal in run.rglob("seal-*.duckdb"):
        os.utime(seal, (past, past))


def rows(run: Path, table: str = "steps") -> list[Any]:
    with RunReader(run) as reader:
        return reader.rows(f"SELECT * FROM {table} ORDER BY ALL")


def names(run: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in (run / "trace").rglob(pattern))


@settings(max_examples=8)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    seals=st.sets(st.integers(1, 5), max_size=3),
    at_least=st.integers(1, 3),
    grown_old=st.booleans(),
)
def test_sealed_and_unsealed_rows_are_the_same(
    sizes: list[int], seals: set[int], at_least: int, grown_old: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(run)
        expected, step = [], 0
        for number, size in enumerate(sizes):
            if number in seals:
                seal_run(run, at_least=at_least)
                if grown_old:
                    age(run)
            publish_steps(run, *range(step, step + size))
            expected += [(s, s / 7) for s in range(step, step + size)]
            step += size
            with RunReader(run) as reader:
                assert reader.rows("SELECT step, loss FROM steps ORDER BY step") == expected
        seal_run(run, at_least=at_least)
        age(run)
        seal_run(run, at_least=at_least)
        with RunReader(run) as reader:
            assert reader.rows("SELECT step, loss FROM steps ORDER BY step") == expected
            assert reader.damaged == {}


def test_every_value_survives_the_seal(empty_run: Path) -> None:
    for step in (-(2**63), 2**63 - 1):
        writer = Writer(empty_run, 0, Health())
        writer.append(
            "steps", attempt=1, step=step, time=float("nan"), loss=float("inf"), lr=None,
            grad_norm=5e-324, skipped=False, batch_hash=-step - 1,
        )  # fmt: skip
        writer.append(
            "digests", attempt=1, step=step, phase="before", kind=["param", "grad"],
            layer=np.array([0, 1]), h=np.array([step, 1]), s1=np.array([0, -1]), s2=0,
        )  # fmt: skip
        writer.append("events", attempt=1, step=step, kind="start", detail="ß'\"\n")
        writer.close()
    before = {table: repr(rows(empty_run, table)) for table in ("steps", "digests", "events")}
    assert len(seal_run(empty_run)) == 3
    for segment in empty_run.rglob("seg-*"):
        segment.unlink()
    assert {table: repr(rows(empty_run, table)) for table in before} == before


def test_too_few_segments_are_left_alone(empty_run: Path) -> None:
    assert seal_run(empty_run) == []
    publish_steps(empty_run, 1)
    assert seal_run(empty_run) == []
    publish_steps(empty_run, 2)
    publish_steps(empty_run, 1, rank=3)
    assert [path.name for path in seal_run(empty_run)] == ["seal-00000000-00000001.duckdb"]
    assert [row[-1] for row in rows(empty_run)] == [0, 3, 0]


def test_segments_outlive_their_seal_by_the_grace(empty_run: Path) -> None:
    publish_steps(empty_run, 1)
    publish_steps(empty_run, 2)
    seal_run(empty_run)
    seal_run(empty_run)
    assert len(names(empty_run, "seg-*")) == 2
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seg-*") == []
    assert len(rows(empty_run)) == 2


def test_a_reader_that_listed_deleted_segments_reads_the_seal(empty_run: Path) -> None:
    publish_steps(empty_run, 1)
    publish_steps(empty_run, 2)
    with RunReader(empty_run) as rows_reader, RunReader(empty_run) as arrow_reader:
        seal_run(empty_run)
        age(empty_run)
        seal_run(empty_run)
        assert names(empty_run, "seg-*") == []
        assert rows_reader.rows("SELECT step FROM steps ORDER BY step") == [(1,), (2,)]
        assert arrow_reader.arrow("SELECT step FROM steps").num_rows == 2
        assert rows_reader.damaged == {}


def test_segments_are_kept_while_their_seal_does_not_hold_their_rows(empty_run: Path) -> None:
    for step in range(3):
        publish_steps(empty_run, step)
    (seal,) = seal_run(empty_run)
    sound = seal.read_bytes()
    seal.write_bytes(sound[: len(sound) // 2])
    age(empty_run)
    seal_run(empty_run)
    assert len(names(empty_run, "seg-*")) == 3
    assert [row[1] for row in rows(empty_run)] == [0, 1, 2]  # from the segments
    seal.unlink()
    with duckdb.connect(str(seal)) as connection:
        connection.execute("CREATE TABLE steps AS SELECT 1 AS attempt, 0::BIGINT AS step")
    age(empty_run)
    seal_run(empty_run)
    assert len(names(empty_run, "seg-*")) == 3
    seal.write_bytes(sound)
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seg-*") == []
    assert [row[1] for row in rows(empty_run)] == [0, 1, 2]


def test_a_damaged_segment_stays_out_of_the_seals(empty_run: Path) -> None:
    for step in range(7):
        publish_steps(empty_run, step)
    bad = segment_path(rank_folder(empty_run, "steps", 0), 3)
    content = bytearray(bad.read_bytes())
    content[len(content) // 3] ^= 4
    bad.write_bytes(content)
    publish_steps(empty_run, 7)
    seal_run(empty_run)
    assert names(empty_run, "seal-*") == [
        "seal-00000000-00000002.duckdb",
        "seal-00000004-00000007.duckdb",
    ]
    age(empty_run)
    seal_run(empty_run)
    assert names(empty_run, "seg-*") == [bad.name]
    with RunReader(empty_run) as reader:
        assert [row[0] for row in reader.rows("SELECT step FROM steps ORDER BY step")] == [
            0, 1, 2, 4, 5, 6, 7,
        ]  # fmt: skip
        assert list(reader.damaged) == [bad]
    assert next_number(bad.parent) == 8


def test_a_segment_that_a_listing_missed_is_not_sealed_over(empty_run: Path) -> None:
    for step in range(5):
        publish_steps(empty_run, step)
    missed = segment_path(rank_folder(empty_run, "steps", 0), 2)
    hidden = missed.rename(missed.with_name("hidden"))
    seal_run(empty_run)
    hidden.rename(missed)
    assert [row[1] for row in rows(empty_run)] == [0, 1, 2, 3, 4]


def test_only_one_process_seals(empty_run: Path) -> None:
    publish_steps(empty_run, 1)
    publish_steps(empty_run, 2)
    with sealing.exclusive(empty_run / "trace" / ".sealing") as mine:
        assert mine
        assert seal_run(empty_run) == []
    assert len(seal_run(empty_run)) == 1


def test_a_seal_that_cannot_be_written_changes_nothing(empty_run: Path, no_space: Any) -> None:
    publish_steps(empty_run, 1)
    publish_steps(empty_run, 2)
    with no_space(5000), pytest.raises(OSError, match="seal"):
        seal_run(empty_run)
    assert names(empty_run, "*seal-*") == []
    assert len(rows(empty_run)) == 2
    assert len(seal_run(empty_run)) == 1


def test_leftovers_of_a_killed_sealing_are_removed(empty_run: Path) -> None:
    publish_steps(empty_run, 1)
    folder = rank_folder(empty_run, "steps", 0)
    for name in (".seal-00000000-00000001.duckdb.12.tmp", ".seal-0-1.duckdb.12.tmp.wal"):
        (folder / name).write_text("half")
    assert len(rows(empty_run)) == 1
    seal_run(empty_run)
    assert names(empty_run, ".seal-*.tmp*") == []


def test_a_seal_has_a_bound(empty_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "ROWS_PER_SEAL", 3)
    for start in range(0, 12, 2):
        publish_steps(empty_run, start, start + 1)
    seal_run(empty_run)
    assert names(empty_run, "seal-*") == [
        "seal-00000000-00000001.duckdb",
        "seal-00000002-00000003.duckdb",
        "seal-00000004-00000005.duckdb",
    ]
    assert len(rows(empty_run)) == 12


def test_folders_of_other_names_are_passed_over(empty_run: Path) -> None:
    publish_steps(empty_run, 1)
    for name in ("rank=old", "rank=00000.bak", "notes"):
        (empty_run / "trace" / "steps" / name).mkdir()
    (empty_run / "trace" / "steps" / "rank=00007").write_text("no folder")
    assert len(rows(empty_run)) == 1
    seal_run(empty_run)


@given(
    segments=st.sets(st.integers(0, 12)),
    seals=st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12))),
    number=st.integers(0, 12),
)
def test_seals_over_a_number_are_those_that_a_listing_has(
    tmp_path_factory: pytest.TempPathFactory,
    segments: set[int],
    seals: set[tuple[int, int]],
    number: int,
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    for segment in segments:
        segment_path(folder, segment).touch()
    for first, last in seals:
        seal_path(folder, first, last).touch()
    (folder / ".seg-00000001.parquet.tmp").touch()
    listed = listing(folder).seals.items()
    expected = {path for (first, last), path in listed if first <= number <= last}
    assert set(seals_over(folder, number)) == expected
    assert expected == {seal_path(folder, a, b) for a, b in seals if a <= number <= b}
