"""The list of checkpoints: their order, what is missing, what is twice, and what neighbours say."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from forensics.checkpoint import Checkpoint
from forensics.cli import main
from forensics.index import index
from forensics.neighbours import with_size_hints
from forensics.readers.guard_archive import READER as GUARD
from forensics.readers.step_of import Settled, settle, step_in_name, step_inside
from forensics.spacing import duplicates, gaps, usual_distance
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.save import expected_digests, save_checkpoint
from sdc_guard.errors import CheckpointUnreadable


def save(path: Path, **state: Any) -> Path:
    torch.save({"w": torch.ones(2), **state}, path)
    return path


def lines_of(path: Path) -> list[str]:
    done = CliRunner().invoke(main, ["index", str(path)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout.splitlines()


# --- steps


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("step-300", 300), ("model_step_300_lr0.001", 300), ("ckpt_00300", 300), ("300", 300),
        ("epoch=1-step=200", 200), ("epoch=1-step=200-v1", 200), ("iter_0000100", 100),
        ("global_step100", 100), ("checkpoint-9000", 9000), ("run7_iteration12", 12),
        ("model-7b-1000", 1000), ("ckpt_1000_rank0", 1000), ("epoch2_1500", 1500),
        ("model-1000-loss0.53", 1000), ("step" + "0" * 40 + "7", 7),
    ],
)  # fmt: skip
def test_the_step_in_a_name(name: str, number: int) -> None:
    found = step_in_name(name)
    assert found is not None
    assert (found.number, found.is_step) == (number, True)


def test_names_that_say_no_step() -> None:
    assert step_in_name("last") is None
    assert step_in_name("model-v2") is None
    epoch = step_in_name("epoch_12")
    assert epoch is not None
    assert (epoch.number, epoch.is_step) == (12, False)


@pytest.mark.parametrize(
    ("numbers", "step"),
    [
        ({"step": 3}, 3), ({"global_step": 4, "epoch": 1}, 4), ({"iteration": 5.0}, 5),
        ({"iter_num": 6}, 6), ({"state.step": 7}, 7), ({"trainer_state.global_step": 8}, 8),
        ({"meta.iter": 9}, 9), ({"optimizer.state.0.step": 10}, None), ({"step": True}, None),
        ({"step": -1}, None), ({"step": 0.5}, None), ({"step": float("nan")}, None),
        ({"step": float("inf")}, None), ({"step": "12"}, None), ({"epoch": 3}, None),
    ],
)  # fmt: skip
def test_the_step_among_the_numbers(numbers: dict[str, Any], step: int | None) -> None:
    assert step_inside(numbers) == step


def test_a_step_that_is_a_tensor(tmp_path: Path) -> None:
    (found,) = index(save(tmp_path / "last.pt", step=torch.tensor(77)))
    assert (found.step, found.notes) == (77, ())


def test_the_content_counts_before_the_name() -> None:
    assert settle(300, step_in_name("step-300")) == Settled(300)
    note = "the name says step 310, the content says step 300"
    assert settle(300, step_in_name("step-310")) == Settled(300, 310, (note,))
    assert settle(300, step_in_name("epoch-3")) == Settled(300)
    assert settle(None, step_in_name("s-9")) == Settled(
        9, None, ("its step is the one in its name",)
    )
    assert settle(None, None).step == 0


def test_numbers_are_compared_as_numbers(tmp_path: Path, seed: int) -> None:
    """A17: whatever the times of modification."""
    steps, times = [900, 1000, 1100, 9000, 10000], random.Random(seed)
    for step in steps:
        path = save(tmp_path / f"checkpoint-{step}.pt", step=step)
        moment = times.randrange(10**9)
        os.utime(path, (moment, moment))
    assert [one.step for one in index(tmp_path)] == steps


def test_both_numbers_are_printed(tmp_path: Path) -> None:
    save(tmp_path / "s-310.pt", step=300)
    save(tmp_path / "s-200.pt", step=200)
    assert lines_of(tmp_path) == [
        "       200  untested",
        "       300  untested  (the name says step 310, the content says step 300)",
    ]
    done = CliRunner().invoke(main, ["index", str(tmp_path), "--json"])
    row = json.loads(done.stdout)["checkpoints"][1]
    assert (row["step"], row["named_step"], row["format"]) == (300, 310, "torch")


# --- spacing


def test_gaps_and_duplicates_are_printed(tmp_path: Path) -> None:
    """A06."""
    for step in (100, 200, 400):
        save(tmp_path / f"s-{step}.pt", step=step)
    save(tmp_path / "best.pt", step=200)
    assert lines_of(tmp_path)[-2:] == [
        "no checkpoint at 300; they are usually 100 apart",
        "2 checkpoints of step 200: best.pt, s-200.pt",
    ]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([100, 200, 300, 700], ["no checkpoint at 400, 500, 600; they are usually 100 apart"]),
        ([10, 20, 30, 40, 50, 100],
         ["no checkpoint at 60, 70, 80 ... 90; they are usually 10 apart"]),
        ([10, 20, 30, 47], ["no checkpoint between 30 and 47; they are usually 10 apart"]),
        ([10, 20, 30, 33], []),
        ([10, 20], []), ([5], []), ([], []), ([3, 3, 3], []),
        ([100, 200, 400, 800], []),  # thinned out on purpose
        ([7, 11, 40], []),
    ],
)  # fmt: skip
def test_gaps(steps: list[int], said: list[str]) -> None:
    assert gaps(steps) == said


@given(st.integers(1, 10**6), st.integers(0, 50), st.integers(6, 40), st.data())
def test_one_missing_among_many_is_found(usual: int, first: int, count: int, data: Any) -> None:
    steps = [(first + n) * usual for n in range(count)]
    assert gaps(steps) == []
    gone = steps.pop(data.draw(st.integers(1, count - 2)))
    assert usual_distance(steps) == usual
    assert gaps(steps) == [f"no checkpoint at {gone}; they are usually {usual} apart"]


def test_attempts_are_no_duplicates() -> None:
    rows = [Checkpoint(5, Path(f"p{n}"), "x", "clean", attempt=n) for n in (1, 2, 2, 2, 2)]
    assert duplicates(rows) == ["4 checkpoints of step 5: p2, p2, p2, ..."]


# --- neighbours


def test_sizes_are_looked_at_only_where_something_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for step, size, readable in (
        (1, 1000, True),
        (2, 400, False),
        (3, 900, False),
        (4, 1100, True),
    ):
        path = tmp_path / str(step)
        path.mkdir()
        (path / "part").write_bytes(bytes(size))
        reasons = () if readable else ("cut",)
        rows.append(Checkpoint(step, path, "x", "untested", reasons, readable=readable))
    found = with_size_hints(rows)
    assert found[1].reasons[1] == (
        "much smaller than its neighbours (400 of 1,050 bytes), disk full?"
    )
    assert found[2].reasons[1] == "900 bytes where its neighbours have 1,050"
    assert (found[0], found[3]) == (rows[0], rows[3])
    monkeypatch.setattr("forensics.neighbours.bytes_of", None)
    assert with_size_hints([rows[0], rows[3]]) == [rows[0], rows[3]]
    assert with_size_hints([rows[1], rows[2]]) == [rows[1], rows[2]]  # nothing to compare with


def test_a_disk_that_was_full(tmp_path: Path, no_space: Callable[[int], Any]) -> None:
    """A18: what the file system refused is missing."""
    big = torch.randn(100_000)
    for step in (1, 2):
        torch.save({"w": big, "step": step}, tmp_path / f"s-{step}.pt")
    with no_space(60_000), pytest.raises(Exception):  # noqa: B017, PT011 - torch raises what it likes
        torch.save({"w": big, "step": 3}, tmp_path / "s-3.pt")
    found = index(tmp_path)
    assert [one.readable for one in found] == [True, True, False]
    assert found[2].step == 3
    assert "much smaller than its neighbours" in found[2].reasons[1]
    assert "disk full?" in found[2].reasons[1]


# --- the guard's own archive


def archived(tmp_path: Path, step: int = 7) -> Path:
    payload = {"w": torch.arange(100.0), "deep": {"b": torch.ones(3)}, "step": step + 1}
    payload["tied"] = payload["w"]
    expected = expected_digests(payload, {}, {}, {})
    folder, manifest = save_checkpoint(tmp_path / "archive", step, 1, payload, expected, [])
    assert manifest.status == "clean"
    return folder


def test_the_archive_is_read_through_its_manifest(tmp_path: Path) -> None:
    archived(tmp_path)
    save(tmp_path / "final.pt", step=9)  # beside the archive: of another kind
    (found,) = index(tmp_path)
    assert (found.format, found.step, found.status) == ("sdc-guard", 7, "clean")
    content = GUARD.open(found)
    assert content.step == 7
    assert content.aliases == {"tied": "w"}
    assert content.tensors["deep.b"].read().tolist() == [1, 1, 1]
    checked = GUARD.check(found)
    assert (checked.damaged, checked.intact, checked.unchecked) == ({}, ("w", "deep.b"), ())


def test_a_digest_tells_what_a_checksum_does_not(tmp_path: Path) -> None:
    folder = archived(tmp_path)
    manifest = Manifest.read(folder)
    state = torch.load(folder / manifest.file)
    state["w"][5] = 5.5  # saved again: the file's own checksums fit
    torch.save(state, folder / manifest.file)
    (found,) = index(tmp_path)
    checked = GUARD.check(found)
    assert checked.damaged["w"].startswith("bytes differ from the recorded digest (element 5,")
    assert checked.intact == ("deep.b",)
    state.pop("deep")
    torch.save(state, folder / manifest.file)
    assert GUARD.check(found).damaged["deep.b"] == "not in the file"


def test_an_archive_without_its_parts(tmp_path: Path) -> None:
    folder = archived(tmp_path)
    (found,) = index(tmp_path)
    shutil.copy(folder / "manifest.json", tmp_path / "kept.json")
    for name in ("state.pt", "manifest.json"):
        (folder / name).unlink()
        for look in (GUARD.open, GUARD.check):
            with pytest.raises(CheckpointUnreadable):
                look(found)
