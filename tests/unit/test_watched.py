"""How much of a run was watched, and where its chain of digests breaks, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import digest, make_run, step, turning_steps, whole_steps, write

from forensics.chain import Break, all_breaks, breaks, carried
from forensics.watched import Watch, Watched, percent
from sdc_guard import RunReader
from sdc_guard.store.run_file import Attempt

BUDGET = Attempt(1, 0, 0.0, digest_budget=0.2)


def watched(run: Path, upto: int) -> Watched:
    with RunReader(run) as reader:
        return Watch(reader).watched(upto)


def holes(run: Path, upto: int) -> list[int]:
    with RunReader(run) as reader:
        return Watch(reader).holes(upto)


def broken(run: Path) -> list[Break]:
    with RunReader(run) as reader:
        return all_breaks(reader)


def test_a_whole_record_is_watched_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, whole_steps(0, 9))
    assert watched(run, 9) == Watched(4 * 9, 4 * 9)
    assert watched(run, 9).share == 1
    assert watched(run, 0) == Watched(0, 0)
    assert watched(run, 0).share == 1
    assert (holes(run, 9), broken(run)) == ([], [])


def test_a_budget_for_one_of_four_tensors_watches_a_quarter(tmp_path: Path) -> None:
    run = make_run(tmp_path, BUDGET)
    write(run, [*turning_steps(0, 9, whole=[4, 9]), ("checkpoints", {"step": 4, "path": "x"})])
    assert watched(run, 9) == Watched(9, 4 * 9)
    assert watched(run, 4) == Watched(4, 4 * 4)
    assert (holes(run, 9), broken(run)) == ([], [])


def test_until_a_checkpoint_tells_the_state_has_as_many_tensors_as_it_may(tmp_path: Path) -> None:
    run = make_run(tmp_path, BUDGET)
    write(run, turning_steps(0, 2))  # three layers of four were seen
    assert watched(run, 2) == Watched(2, 4 * 2)


def test_a_lost_step_is_a_hole_in_any_record(tmp_path: Path) -> None:
    for name, attempt, rows in (
        ("whole", Attempt(1, 0, 0.0), whole_steps(0, 9)),
        ("part", BUDGET, turning_steps(0, 9)),
    ):
        run = make_run(tmp_path / name, attempt)
        write(run, [row for row in rows if row[1]["step"] not in (0, 5, 6)])
        assert holes(run, 9) == [0, 5, 6]
        assert holes(run, 5) == [0, 5]
        with RunReader(run) as reader:
            assert Watch(reader).lost(9) == [0, 5, 6]


def test_a_lost_digest_is_a_hole_only_where_it_was_due(tmp_path: Path) -> None:
    def lost(row: Any) -> bool:
        return row[0] == "digests" and row[1]["step"] == 5

    whole, part = make_run(tmp_path / "whole"), make_run(tmp_path / "part", BUDGET)
    write(whole, [row for row in whole_steps(0, 9) if not lost(row)])
    write(part, [row for row in turning_steps(0, 9) if not lost(row)])
    assert (holes(whole, 9), holes(part, 9)) == ([5], [])
    assert watched(part, 9) == Watched(9 - 2, 4 * 9)


def test_a_rank_that_is_missing_is_a_hole(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, whole_steps(0, 9))
    write(run, whole_steps(0, 7), rank=1)
    assert holes(run, 7) == []
    assert holes(run, 9) == [8, 9]
    assert watched(run, 7) == Watched(2 * 4 * 7, 2 * 4 * 7)
    part = make_run(tmp_path / "part", BUDGET)
    write(part, turning_steps(0, 9))
    write(part, turning_steps(0, 7), rank=1)
    assert (holes(part, 7), holes(part, 9)) == ([], [8, 9])


def test_a_break_is_seen_where_it_was_watched(tmp_path: Path) -> None:
    rows = turning_steps(0, 9)
    for number, (table, columns) in enumerate(rows):
        if table == "digests" and (columns["step"], columns["phase"]) == (7, "before"):
            rows[number] = (table, {**columns, "s1": -1})
    run = make_run(tmp_path, BUDGET)
    write(run, rows)
    assert broken(run) == [Break(7, "param", "layer.2", within=True)]
    with RunReader(run) as reader:
        assert breaks(reader) == [(7, "param", "layer.2")]
        assert carried(reader, 7) == {(0, "param", "layer.2"): False}
        assert carried(reader, 8) == {(0, "param", "layer.3"): True}


def test_what_the_script_wrote_on_purpose_is_no_break_and_not_watched(tmp_path: Path) -> None:
    rows = whole_steps(0, 9)
    rows += [digest(10, "before", n, 777) for n in range(4)]
    rows += [step(10), *(digest(10, "after", n, 778) for n in range(4))]
    run = make_run(tmp_path)
    write(run, [*rows, ("events", {"step": 10, "kind": "refresh", "detail": ""})])
    assert broken(run) == []
    assert watched(run, 10) == Watched(4 * 9, 4 * 10)
    with RunReader(run) as reader:
        assert set(carried(reader, 10).values()) == {True}


def test_a_step_that_is_missing_links_nothing(tmp_path: Path) -> None:
    rows = [*whole_steps(0, 3), *(digest(6, "before", n, 1) for n in range(4)), step(6)]
    run = make_run(tmp_path)
    write(run, rows)
    assert broken(run) == []
    assert holes(run, 6) == [4, 5, 6]


def test_an_attempt_that_goes_on_from_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path, Attempt(1, 0, 0.0), Attempt(2, 5, 1.0, digest_budget=0.2))
    write(run, whole_steps(0, 9))
    rows = turning_steps(5, 9, attempt=2)
    write(run, [*rows, digest(5, "before", 0, 999, attempt=2)])
    assert broken(run) == [Break(5, "param", "layer.0", within=False)]
    with RunReader(run) as reader:
        assert breaks(reader) == []
    # whole up to step 4, one of four at the resume, one at each of the four steps after
    assert watched(run, 9) == Watched(4 * 4 + 1 + 4, 4 * 9)
    with RunReader(run, attempt=1) as reader:
        assert Watch(reader).watched(9) == Watched(4 * 9, 4 * 9)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_share_is_never_told_larger_than_it_is(part: int, whole: int) -> None:
    share = min(part, whole) / whole
    text = percent(share)
    if text == "less than 0.1 %":
        assert 0 < share < 0.001
        return
    told = float(text.removesuffix(" %"))
    assert told <= 100 * share < told + 0.1 + 1e-9
    assert (told == 100) == (share == 1)


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0421, "4.2 %"), (0.9999, "99.9 %"), (1, "100 %")]
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
