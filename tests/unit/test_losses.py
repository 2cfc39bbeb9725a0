"""How many rows are missing, by our own count, where a file is damaged or gone."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_writers import SegmentWriter, age, delete, flip

from sdc_guard import RunReader
from sdc_guard.cli import main
from sdc_guard.store.contents import Part
from sdc_guard.store.losses import rows_missing
from sdc_guard.store.reader import Trouble
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import rank_folder


def losses(run: Path) -> list[Trouble]:
    with RunReader(run) as reader:
        found = [t for t in reader.troubles() if t.kind in ("damaged files", "missing files")]
        assert reader.losses() == found
        return found


def told(run: Path) -> list[tuple[str, int | None]]:
    return [(trouble.kind, trouble.count) for trouble in losses(run)]


def five(run: Path, writer: str | None = "w") -> list[Path]:
    """Segments of 10, 20, 30, 40 and 50 steps."""
    own, first, paths = SegmentWriter(run, writer), 0, []
    for count in (10, 20, 30, 40, 50):
        paths.append(own.steps(first, first + count - 1))
        first += count
    return paths


@pytest.mark.parametrize(("number", "rows"), [(0, 10), (1, 20), (2, 30), (3, 40)])
@pytest.mark.parametrize("deleted", [False, True])
def test_rows_of_a_file_between_others(
    empty_run: Path, number: int, rows: int, deleted: bool
) -> None:
    path = five(empty_run)[number]
    if deleted:
        path.unlink()
    else:
        flip(path)
    (trouble,) = losses(empty_run)
    assert trouble.kind == ("missing files" if deleted else "damaged files")
    assert trouble.count == rows
    assert (trouble.table, trouble.rank) == ("steps", 0)
    first = sum((10, 20, 30, 40)[:number])
    assert (trouble.first_step, trouble.last_step) == (first - 1 if number else None, first + rows)
    assert f"{rows} rows are missing of steps of rank 0" in trouble.text
    assert (f"segment {number}" if deleted else path.name) in trouble.text


def test_the_newest_file_is_known_to_nobody(empty_run: Path) -> None:
    paths = five(empty_run)
    flip(paths[4])
    assert told(empty_run) == [("damaged files", None)]
    assert "unknown number" in losses(empty_run)[0].text
    SegmentWriter(empty_run, "next").steps(100, 109)  # another process does not know it either
    assert told(empty_run) == [("damaged files", None)]


def test_the_command_sql_tells_what_its_answer_lacks(empty_run: Path) -> None:
    flip(five(empty_run)[1])
    done = CliRunner().invoke(main, ["sql", str(empty_run), "SELECT count(*) FROM steps"])
    assert (done.exit_code, done.stdout) == (0, "count_star()\n130\n")
    assert done.stderr == (
        "sdc-guard: damaged files, 20 rows are missing of steps of rank 0:"
        " seg-00000001.parquet (CRC mismatch)\n"
    )
    done = CliRunner().invoke(main, ["sql", str(empty_run), "SELECT count(*) FROM alerts"])
    assert (done.exit_code, done.stderr) == (0, "")


def test_several_files_are_one_finding_with_the_sum(empty_run: Path) -> None:
    paths = five(empty_run)
    flip(paths[1])
    flip(paths[3])
    assert told(empty_run) == [("damaged files", 60)]
    paths[2].unlink()
    assert told(empty_run) == [("damaged files", 90)]


def test_files_side_by_side_that_are_damaged_and_gone(empty_run: Path) -> None:
    paths = five(empty_run)
    flip(paths[0])
    paths[2].unlink()
    assert told(empty_run) == [("damaged files", 10), ("missing files", 30)]


def test_files_of_before_rows_were_counted(empty_run: Path) -> None:
    flip(five(empty_run, None)[2])
    assert told(empty_run) == [("damaged files", None)]


def test_two_writers_count_each_their_own_rows(empty_run: Path) -> None:
    one, two = SegmentWriter(empty_run, "one"), SegmentWriter(empty_run, "two")
    paths = [
        writer.steps(first, first + 4 + n)
        for first in (0, 10, 20)
        for n, writer in enumerate((one, two))
    ]
    flip(paths[2])
    assert told(empty_run) == [("damaged files", 5)]
    flip(paths[3])
    assert told(empty_run) == [("damaged files", 11)]


def test_a_file_of_a_writer_that_left_no_other(empty_run: Path) -> None:
    one, other = SegmentWriter(empty_run, "one"), SegmentWriter(empty_run, "other")
    one.steps(0, 9)
    lost = other.steps(10, 19)
    one.steps(20, 29)
    flip(lost)
    assert told(empty_run) == [("damaged files", None)]


def test_the_first_files_of_a_later_attempt(empty_run: Path) -> None:
    later = SegmentWriter(empty_run, "later", attempt=2)
    paths = [later.steps(first, first + 9) for first in (0, 10, 20)]
    flip(paths[0])
    assert told(empty_run) == [("damaged files", 10)]
    flip(paths[1])  # now an earlier attempt's may be one of them
    assert told(empty_run) == [("damaged files", None)]


def test_the_first_file_of_a_later_writer(empty_run: Path) -> None:
    five(empty_run)
    later = SegmentWriter(empty_run, "later", attempt=2)
    lost = later.steps(150, 156)
    later.steps(157, 160)
    flip(lost)
    assert told(empty_run) == [("damaged files", 7)]


def test_sealed_files_count_too(empty_run: Path) -> None:
    paths = five(empty_run)
    seals = [path.name for path in seal_run(empty_run)]
    age(empty_run)
    seal_run(empty_run)
    more = SegmentWriter(empty_run, "more")
    lost = [more.steps(first, first + 9) for first in (150, 160, 170)]
    lost[1].unlink()
    assert (seals, paths[0].exists()) == (["seal-00000000-00000004.duckdb"], False)
    assert told(empty_run) == [("missing files", 10)]
    seal = rank_folder(empty_run, "steps", 0) / seals[0]
    flip(seal, 0)
    flip(seal, 20)
    assert told(empty_run) == [("damaged files", None), ("missing files", 10)]


def test_a_seal_between_files_of_its_writer(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in range(0, 60, 10):
        writer.steps(first, first + 9)
        if first in (10, 30):
            seal_run(empty_run)
    age(empty_run)
    seal_run(empty_run)
    folder = rank_folder(empty_run, "steps", 0)
    seals = sorted(folder.glob("seal-*"))
    assert len(seals) == 3
    seals[1].unlink()
    assert told(empty_run) == [("missing files", 20)]
    seals[0].write_bytes(b"")
    assert told(empty_run) == [("damaged files", 40)]


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=3, max_size=9),
    lost=st.integers(0, 8),
    sealed=st.integers(0, 3),
    writers=st.lists(st.sampled_from("ab"), min_size=9, max_size=9),
)
def test_a_count_that_is_told_is_right(
    sizes: list[int], lost: int, sealed: int, writers: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(run)
        own = {letter: SegmentWriter(run, letter) for letter in "ab"}
        paths, first = [], 0
        for number, size in enumerate(sizes):
            paths.append(own[writers[number]].steps(first, first + size - 1))
            first += size
            if number == sealed - 1:
                seal_run(run, at_least=1)
        lost %= len(sizes)
        if lost < sealed:
            delete([paths[lost]])
            assert told(run) == []  # its rows are in the seal
            return
        flip(paths[lost])
        ((kind, count),) = told(run)
        assert kind == "damaged files"
        # only what no later file of that writer says may be unknown
        assert count in (sizes[lost], None)
        assert count is not None or writers[lost] not in writers[lost + 1 : len(sizes)]


def test_rows_of_one_writer_lost_in_two_places_are_not_shared_out(seed: int) -> None:
    def part(writer: str, number: int, rows: int, before: int) -> list[Part]:
        return [Part(writer, 1, number, number, 1, rows, before, 0, 0, 0, 0, 0)]

    rows = random.Random(seed).randint(1, 9)
    # between the holes only the other writer's file is left
    contents = {
        (0, 0): part("a", 0, 5, 0),
        (2, 2): part("b", 2, 5, 0),
        (4, 4): part("a", 4, 5, 5 + rows),
        (5, 5): part("b", 5, 5, 5),
    }
    holes = [(1, 1), (3, 3)]
    assert [rows_missing(hole, holes, contents) for hole in holes] == [None, None]
    contents[4, 4] = part("a", 4, 5, 5)
    contents[5, 5] = part("b", 5, 5, 5 + rows)
    assert rows_missing((3, 3), holes, contents) == rows
