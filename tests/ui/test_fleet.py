"""Which runs are shown, and that an address opens nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import make_run

import app.fleet
from app.fleet import MAX_DEPTH, Fleet, Run, runs_given
from sdc_guard.errors import UsageError


def names(fleet: Fleet) -> list[str]:
    return [run.name for run in fleet.runs]


def test_a_run_a_folder_of_runs_and_a_run_in_a_lake(tmp_path: Path) -> None:
    alone = make_run(tmp_path / "alone")
    for name in ("b", "a/2", "a/1"):
        make_run(tmp_path / "runs" / name)
    lake = "ducklake:postgres:dbname=sdc?run=far"
    fleet = runs_given([str(alone), str(tmp_path / "runs"), lake])
    assert names(fleet) == ["alone", "a/1", "a/2", "b", "far"]
    assert fleet.named("a/2") == Run("a/2", str(tmp_path / "runs" / "a" / "2"))
    assert fleet.named("far") == Run("far", lake)
    assert fleet.refused == ()


def test_no_run_at_all_is_an_error_and_a_run_to_come_is_none() -> None:
    with pytest.raises(UsageError, match="the dashboard shows runs: none given"):
        runs_given([])


def test_a_folder_that_is_not_there_or_empty_is_a_run_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    fleet = runs_given(["later", "empty"])
    assert fleet.runs == (
        Run("later", str(tmp_path / "later")),
        Run("empty", str(tmp_path / "empty")),
    )


def test_a_run_is_not_looked_into_nor_is_a_hidden_folder_nor_one_far_down(tmp_path: Path) -> None:
    top = tmp_path / "runs"
    make_run(top / "one")
    make_run(top / "one" / "copy")
    make_run(top / ".trash" / "two")
    make_run(top.joinpath(*"x" * MAX_DEPTH, "deep"))
    make_run(top.joinpath(*"y" * (MAX_DEPTH - 1), "still"))
    assert names(runs_given([str(top)])) == ["one", "y/y/y/still"]


def test_the_same_run_is_shown_once_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run")
    assert names(runs_given([str(one), str(two), str(one)])) == ["x/run", "y/run"]
    again = runs_given([str(tmp_path), str(one)])
    assert names(again) == ["x/run", "y/run"]
    lakes = [f"ducklake:postgres:dbname={name}?run=r" for name in "ab"]
    assert names(runs_given(lakes)) == ["r", "r (2)"]


@pytest.mark.parametrize(
    "link", ["folder", "run.json", "trace", "trace/steps", "trace/steps/rank=00000", "bisect"]
)
def test_a_link_that_leads_out_of_the_folder_is_refused_in_a_line(
    tmp_path: Path, link: str
) -> None:
    outside = make_run(tmp_path / "outside" / "secret")
    for part in ("trace/steps/rank=00000", "bisect"):
        (outside / part).mkdir(parents=True)
    top = tmp_path / "runs"
    make_run(top / "fine")
    run = top / "odd"
    if link == "folder":
        run.symlink_to(outside)
    else:
        make_run(run)
        (run / link).parent.mkdir(exist_ok=True, parents=True)
        (run / link).unlink(missing_ok=True)
        (run / link).symlink_to(outside / link)
    fleet = runs_given([str(top)])
    assert names(fleet) == ["fine"]
    (line,) = fleet.refused
    assert "odd is not shown" in line
    assert "leads out of" in line
    assert "\n" not in line
    # who gives the run itself means it
    assert names(runs_given([str(run)])) == ["odd"]


def test_a_link_within_the_folder_is_not_followed_and_needs_no_word(tmp_path: Path) -> None:
    top = tmp_path / "runs"
    make_run(top / "one")
    (top / "latest").symlink_to(top / "one")
    (top / "circle").symlink_to(top)
    fleet = runs_given([str(top)])
    assert (names(fleet), fleet.refused) == (["one"], ())


def test_a_part_of_a_run_that_is_a_link_within_the_folder_is_shown(tmp_path: Path) -> None:
    top = tmp_path / "runs"
    one = make_run(top / "one")
    (top / ".scratch").mkdir()
    (one / "trace").symlink_to(top / ".scratch")
    fleet = runs_given([str(top)])
    assert (names(fleet), fleet.refused) == (["one"], ())


def test_a_circle_of_links_leads_nowhere_and_is_refused(tmp_path: Path) -> None:
    top = tmp_path / "runs"
    make_run(top / "fine")
    run = make_run(top / "odd")
    (run / "bisect").symlink_to(run / "back")
    (run / "back").symlink_to(run / "bisect")
    fleet = runs_given([str(top)])
    assert names(fleet) == ["fine"]
    assert "odd is not shown: its bisect is a link" in fleet.refused[0]


def test_a_folder_of_too_many_folders_is_looked_through_in_part_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.fleet, "MAX_FOLDERS", 3)
    top = tmp_path / "runs"
    make_run(top / "one")
    for name in "abc":
        (top / name).mkdir()
    fleet = runs_given([str(top)])
    assert names(fleet) == ["one"]
    assert fleet.refused == (f"{top}: more than 3 folders; give a folder further down",)


@pytest.mark.parametrize(
    "asked", ["../outside", "..", "/", "/etc", "one/../one", "one/", "ONE", "", "."]
)
def test_a_name_that_was_not_found_opens_nothing(tmp_path: Path, asked: str) -> None:
    make_run(tmp_path / "outside")
    make_run(tmp_path / "runs" / "one")
    fleet = runs_given([str(tmp_path / "runs")])
    assert fleet.named(asked) is None
    assert fleet.named(str(tmp_path / "outside")) is None
