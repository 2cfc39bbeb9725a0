"""Two writers, steps twice, steps backwards, ranks apart, gaps: one finding each, with counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from segment_writers import SegmentWriter, delete, flip

from sdc_guard import RunReader
from sdc_guard.store.reader import Trouble
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import rank_folder
from sdc_guard.store.writer import Health, Writer


def troubles(run: Path, *, sealed: bool = False) -> list[Trouble]:
    if sealed:
        seal_run(run)
        delete((run / "trace").rglob("seg-*"))
    with RunReader(run) as reader:
        found = reader.troubles()
    assert all("\n" not in trouble.text for trouble in found)
    return found


def two_writers(run: Path, names: tuple[str | None, str | None], shift: float) -> None:
    """656 steps, recorded by two processes in turns."""
    one, two = (SegmentWriter(run, name) for name in names)
    for first in range(0, 656, 41):
        one.steps(first, first + 40)
        two.steps(first, first + 40, shift=shift)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("names", [("first", "second"), (None, None)])
def test_two_writers_on_one_run(
    empty_run: Path, names: tuple[str | None, str | None], sealed: bool
) -> None:
    two_writers(empty_run, names, 0.001)
    (trouble,) = troubles(empty_run, sealed=sealed)
    assert trouble.kind == "duplicate steps: two writers"
    assert (trouble.rank, trouble.attempt, trouble.table) == (0, 1, "steps")
    assert (trouble.first_step, trouble.last_step, trouble.count) == (0, 655, 656)
    assert "656 steps were recorded more than once and 656 of them differ" in trouble.text
    if None not in names:
        assert "first wrote 656 rows in segments 0 to 30" in trouble.text
        assert "second wrote 656 rows in segments 1 to 31" in trouble.text
        with RunReader(empty_run) as reader:
            for name, shift in (("first", 0.0), ("second", 0.001)):
                rows = reader.of_writer(name).sort_by("step")
                assert rows["step"].to_pylist() == list(range(656))
                expected = np.arange(656.0) ** 2 + shift
                assert rows["loss"].to_numpy().tolist() == expected.tolist()
            assert [part.writer for part in reader.writers()[0]] == ["first", "second"]
    elif not sealed:
        assert "segment 1; segment 3; segment 5; and 13 more" in trouble.text


@pytest.mark.parametrize("sealed", [False, True])
def test_steps_recorded_twice_with_equal_values(empty_run: Path, sealed: bool) -> None:
    two_writers(empty_run, ("first", "second"), 0.0)
    (trouble,) = troubles(empty_run, sealed=sealed)
    assert (trouble.kind, trouble.count) == ("duplicate steps", 656)


def test_time_alone_makes_no_difference(empty_run: Path) -> None:
    for name, time in (("a", 1.0), ("b", 2.0)):
        SegmentWriter(empty_run, name).write(
            "steps", [1, 2], loss=[np.nan, 0.5], time=[time, time], step_seconds=[time, time]
        )
    (trouble,) = troubles(empty_run)
    assert (trouble.kind, trouble.count) == ("duplicate steps", 2)


@pytest.mark.parametrize("sealed", [False, True])
def test_one_process_that_goes_back_is_not_two_writers(empty_run: Path, sealed: bool) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.steps(0, 99)
    writer.steps(60, 119, shift=0.5)
    (trouble,) = troubles(empty_run, sealed=sealed)
    assert (trouble.kind, trouble.count) == ("steps run backwards", 40)
    assert (trouble.first_step, trouble.last_step) == (60, 99)


@pytest.mark.parametrize("sealed", [False, True])
def test_steps_that_run_backwards_without_coming_again(empty_run: Path, sealed: bool) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.steps(50, 99)
    writer.write("steps", [*range(40, 50), *range(30, 40)])
    writer.steps(0, 29)
    (trouble,) = troubles(empty_run, sealed=sealed)
    assert (trouble.kind, trouble.count) == ("steps run backwards", 3)
    assert (trouble.first_step, trouble.last_step) == (0, 99)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_resume_is_no_trouble(empty_run: Path, sealed: bool) -> None:
    RunFile.read(empty_run).with_attempt(Attempt(2, 60, 1.0)).write(empty_run)
    SegmentWriter(empty_run, "a").steps(0, 99)
    SegmentWriter(empty_run, "b", attempt=2).steps(60, 119, shift=0.5)
    assert troubles(empty_run, sealed=sealed) == []


def test_ranks_disagree_on_the_step_at_the_first_record(empty_run: Path) -> None:
    for rank, first in ((0, 500), (1, 0)):
        writer = Writer(empty_run, rank, Health())
        writer.append("steps", attempt=1, step=first, loss=1.0)
        writer.close()
    (trouble,) = troubles(empty_run)
    assert trouble.kind == "ranks disagree on the step"
    assert (trouble.rank, trouble.attempt, trouble.count) == (None, 1, 1)
    assert (trouble.first_step, trouble.last_step) == (0, 500)
    assert "rank 1 at step 0; rank 0 at step 500" in trouble.text


def test_many_ranks_that_disagree_are_one_finding(empty_run: Path) -> None:
    for rank in range(12):
        SegmentWriter(empty_run, f"w{rank}", rank=rank).steps(500 if rank == 3 else 0, 510)
    (trouble,) = troubles(empty_run)
    assert (trouble.kind, trouble.count) == ("ranks disagree on the step", 1)
    assert "ranks 0, 1, 2, 4, 5, 6, 7, 8 and 3 more at step 0; rank 3 at step 500" in trouble.text


def test_a_rank_whose_first_file_is_damaged_does_not_disagree(empty_run: Path) -> None:
    for rank in (0, 1):
        writer = SegmentWriter(empty_run, f"w{rank}", rank=rank)
        paths = [writer.steps(0, 9), writer.steps(10, 19)]
    flip(paths[0])
    assert [trouble.kind for trouble in troubles(empty_run)] == ["damaged files"]


@pytest.mark.parametrize("sealed", [False, True])
def test_gaps_of_steps(empty_run: Path, sealed: bool) -> None:
    writer = SegmentWriter(empty_run, "w")
    writer.steps(0, 9)
    writer.steps(15, 19)
    writer.write("steps", [20, 22, 23, 30])
    (trouble,) = troubles(empty_run, sealed=sealed)
    assert (trouble.kind, trouble.rank, trouble.attempt) == ("missing steps", 0, 1)
    assert (trouble.first_step, trouble.last_step, trouble.count) == (10, 29, 5 + 1 + 6)
    assert "12 in 3 gaps" in trouble.text


def test_steps_of_a_damaged_file_are_missing_with_a_reason(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    paths = [writer.steps(first, first + 9) for first in (0, 10, 20)]
    flip(paths[1])
    damage, gap = troubles(empty_run)
    assert (damage.kind, damage.count) == ("damaged files", 10)
    assert (gap.kind, gap.count, gap.first_step, gap.last_step) == ("missing steps", 10, 10, 19)
    assert "damaged or missing" in gap.text


def test_the_ends_of_what_a_step_can_be(empty_run: Path) -> None:
    low, high = -(2**63), 2**63 - 1
    SegmentWriter(empty_run, "w").write("steps", [low, low + 1, high])
    (trouble,) = troubles(empty_run)
    assert trouble.count == 2**64 - 3
    assert (trouble.first_step, trouble.last_step) == (low + 2, high - 1)


def test_a_sound_run_and_an_empty_one_have_no_trouble(empty_run: Path) -> None:
    assert troubles(empty_run) == []
    for rank in (0, 1):
        writer = SegmentWriter(empty_run, f"w{rank}", rank=rank)
        for first in (0, 10, 20):
            writer.steps(first, first + 9)
            writer.layers(first, first + 9, 3)
    assert troubles(empty_run) == []
    assert troubles(empty_run, sealed=True) == []


def test_a_listing_that_was_cut_short_is_told(empty_run: Path) -> None:
    writer = SegmentWriter(empty_run, "w")
    for first in range(0, 40, 10):
        writer.steps(first, first + 9)
    hidden = sorted(rank_folder(empty_run, "steps", 0).glob("seg-*"))[1:3]
    for path in hidden:
        path.rename(path.with_suffix(".away"))
    (gone, _) = troubles(empty_run)
    assert (gone.kind, gone.count) == ("missing files", 20)
    assert "segments 1 to 2" in gone.text
