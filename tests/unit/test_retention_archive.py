"""`sdc-guard keep` on folders: what it reads, what it leaves alone, what it deletes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from made_archive import T0, MadeRun, apply, keep

from sdc_guard import Guard
from sdc_guard.archive.convictions import Conviction, add_conviction, read_convictions
from sdc_guard.archive.manifest import FILE, Manifest
from sdc_guard.archive.restore import checkpoints
from sdc_guard.archive.retention import delete as delete_module
from sdc_guard.archive.retention.delete import SEAL, delete_planned
from sdc_guard.archive.retention.inventory import Inventory
from sdc_guard.archive.retention.lock import alone
from sdc_guard.archive.retention.pins import FILE as PINS
from sdc_guard.archive.retention.plan import Plan, Rule, plan
from sdc_guard.archive.save import save_checkpoint
from sdc_guard.archive.sealing.listed import Listed, list_sealed
from sdc_guard.archive.sealing.seal_file import seal_of
from sdc_guard.cli import main
from sdc_guard.errors import UsageError
from sdc_guard.options import check_keep


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "run").saves(8)


def test_a_dry_run_changes_nothing(run: MadeRun) -> None:
    before = sorted(run.folder.rglob("*"))
    text = keep(run, "--count", 3).output
    assert sorted(run.folder.rglob("*")) == before
    assert text.count("delete\n") == 5
    assert "3 kept, 5 to delete" in text
    found = json.loads(keep(run, "--count", 3, "--json").stdout)
    assert found["schema"] == {"name": "sdc-guard.keep", "version": 1}
    assert (found["applied"], found["deleted"], len(found["to_delete"])) == (False, [], 5)


def test_apply_deletes_what_the_dry_run_said(run: MadeRun) -> None:
    said = json.loads(keep(run, "--count", 3, "--json").stdout)
    text = keep(run, "--count", 3, "--apply").output
    assert {path.name for path in run.archive.glob("step=*")} == {
        row["name"] for row in said["checkpoints"] if row["kept"]
    }
    assert 700 in run.steps
    assert "5 deleted" in text
    assert "3 kept" in text
    assert not list(run.archive.glob(".step=*"))
    assert "3 kept, nothing to delete" in keep(run, "--count", 3).output


def test_pins(run: MadeRun) -> None:
    run.save(200, attempt=2, name="step=000200-a2", latest=False)
    keep(run, "--pin", 100, "--pin", "200", "--pin", "step=000300")
    assert json.loads((run.archive / PINS).read_text())["pins"] == [
        "step=000100", "step=000200", "step=000200-a2", "step=000300",
    ]  # fmt: skip
    keep(run, "--unpin", 200)
    apply(run, 2)
    assert run.steps == [100, 300, 600, 700]
    assert "no checkpoint of step 77" in keep(run, "--pin", 77, code=5).output
    assert "not pinned" in keep(run, "--unpin", 600, code=2).output


def test_damaged_pins_stand_in_the_way(run: MadeRun) -> None:
    (run.archive / PINS).write_text('{"schema": "sdc-guard/pins/2", "pins": []}')
    assert apply(run)["deleted"] == []
    assert "pins.json cannot be read" in keep(run).output
    assert "pins.json cannot be read" in keep(run, "--pin", 100, code=2).output


def damaged_manifest(folder: Path) -> None:
    (folder / FILE).write_text("{")


def no_manifest(folder: Path) -> None:
    (folder / FILE).unlink()


def cut(folder: Path) -> None:
    (folder / "state.pt").write_bytes(b"x" * 49)


def being_written(folder: Path) -> None:
    (folder / ".manifest.json.abc.tmp").write_text("{")


def somebodys_file(folder: Path) -> None:
    (folder / "notes.txt").write_text("the best one")


def linked(folder: Path) -> None:
    shutil.move(folder, folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")


def without_time(folder: Path) -> None:
    content = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(content | {"created": "today"}))


ODD = [damaged_manifest, no_manifest, cut, being_written, somebodys_file, linked, without_time]


@pytest.mark.parametrize("spoil", ODD)
def test_what_is_not_understood_stays(run: MadeRun, spoil: Callable[[Path], None]) -> None:
    spoil(run.archive / "step=000100")
    spoil(run.archive / "step=000700")  # LATEST, and no clean one any more
    found = apply(run, 2)
    assert run.steps == [100, 500, 600, 700]
    (odd,) = [row for row in found["checkpoints"] if row["step"] == 100]
    assert odd["status"] == "unknown"
    assert odd["why"].startswith("not understood: ")


def test_an_open_incident_of_the_trace_and_one_that_closed(run: MadeRun) -> None:
    run.incident(450)
    apply(run, 1)
    assert run.steps == [300, 400, 500, 600, 700]  # of those before 400 one
    run.incident(450, closed=500)
    apply(run, 1)
    assert run.steps == [700]


def test_a_trace_that_cannot_be_read_or_is_gone(run: MadeRun) -> None:
    run.incident(450)
    (segment,) = (run.folder / "trace" / "incidents").rglob("seg-*.parquet")
    segment.write_bytes(segment.read_bytes()[:-40])
    assert apply(run)["deleted"] == []
    assert "whether an incident is open is not known" in keep(run).output
    shutil.rmtree(run.folder / "trace")
    assert apply(run)["deleted"] == []


def test_convicted_ones_are_evidence_and_no_clean_ones(run: MadeRun) -> None:
    add_conviction(run.archive, Conviction(1, 550, 560, "a bit"))
    apply(run, 2)
    assert run.steps == [400, 500, 700]  # LATEST
    with (run.archive / "convictions.jsonl").open("a") as file:
        file.write("{torn\n")
    assert apply(run, 1)["deleted"] == []


def test_a_deleted_checkpoints_name_may_be_taken_again(run: MadeRun) -> None:
    add_conviction(run.archive, Conviction(1, 50, 100, "bytes", checkpoint="step=000100"))
    (run.archive / f"step=000100{SEAL}").write_text("{}")
    apply(run, 2)
    assert run.steps == [600, 700]
    run.started((1, 0), (2, 50))
    again = run.save(100, attempt=2)
    (found,) = [one for one in checkpoints(run.archive) if one.folder == again]
    assert found.clean
    assert not (run.archive / f"step=000100{SEAL}").exists()
    assert read_convictions(run.archive)[0].covers(again, Manifest.read(again), ()) is False


def test_superseded_ones_are_no_clean_ones(run: MadeRun) -> None:
    run.started((1, 0), (2, 401))
    run.save(500, attempt=2, name="step=000500-a2")
    apply(run, 2)
    assert sorted(path.name for path in run.archive.glob("step=*")) == [
        "step=000400", "step=000500-a2",
    ]  # fmt: skip


@pytest.mark.parametrize("leave", ["a folder", "no archive", "other writers"])
def test_only_a_guards_archive(tmp_path: Path, leave: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if leave == "no archive":
        MadeRun(tmp_path / "made")
        shutil.copy(tmp_path / "made" / "run.json", folder)
    if leave == "other writers":
        torch.save({"step": 1}, folder / "checkpoint-1.pt")
    done = CliRunner().invoke(main, ["keep", str(folder)])
    assert done.exit_code in (2, 5)
    assert len(done.output.splitlines()) == 1
    assert done.output.startswith("sdc-guard: ")


def test_what_a_guard_sealed_elsewhere_is_told_and_left_alone(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    for step in (10, 20, 30):
        saved = tmp_path / f"it{step}.pt"
        saved.write_bytes(b"x")
        list_sealed(run.folder, Listed(saved, step, 1))
    (tmp_path / "it30.pt").unlink()
    done = CliRunner().invoke(main, ["keep", str(run.folder), "--apply"])
    assert done.exit_code == 0
    told = "2 checkpoints that your own code saved and guard.seal sealed: keep never deletes them"
    assert done.stdout.splitlines()[-1] == told
    assert (tmp_path / "it10.pt").exists()


def planner(run: MadeRun, rule: Rule) -> Callable[[], Plan]:
    inventory = Inventory(run.folder)
    return lambda: plan(inventory.look(T0), rule, T0)


def test_what_happens_between_two_deletions_counts(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = planner(run, Rule(2, "keep-last"))
    gone: list[str] = []
    remove = shutil.rmtree

    def meanwhile(path: Path, **options: Any) -> None:
        remove(path, **options)
        if len(gone) == 0:  # step 0 is renamed and about to be told; 100 would be next
            keep(run, "--pin", 100)
            cut(run.archive / "step=000300")
            run.save(800)
        if len(gone) == 2:
            run.incident(420)

    monkeypatch.setattr(delete_module.shutil, "rmtree", meanwhile)
    delete_planned(run.archive, look(), look, lambda stored: gone.append(stored.name))
    assert gone == ["step=000000", "step=000200", "step=000400"]
    assert run.steps == [100, 300, 500, 600, 700, 800]


def test_one_that_was_replaced_since_is_left_alone(run: MadeRun) -> None:
    look = planner(run, Rule(2, "keep-last"))
    before = look()
    plans = iter([before])
    shutil.rmtree(run.archive / "step=000000")
    run.save(0, latest=False)
    told: list[str] = []
    again = lambda: next(plans, replace(before, goes=()))  # noqa: E731
    delete_planned(run.archive, before, again, lambda one: told.append(one.name))
    assert told == []
    assert run.steps == list(range(0, 800, 100))


def test_another_process_that_deletes_is_waited_for_and_named(run: MadeRun) -> None:
    with (
        alone(run.archive),
        pytest.raises(UsageError, match="another process is deleting"),
        alone(run.archive, 0.05),
    ):
        pass


def test_the_next_save_removes_what_a_killed_process_had_renamed(tmp_path: Path) -> None:
    left = tmp_path / ".step=000001.abc.deleted"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    assert checkpoints(tmp_path) == []
    save_checkpoint(tmp_path, 2, 1, {"step": 2}, {}, [])
    assert not left.exists()


class AtOnce:
    """In place of a process: the command runs here, and has ended when it was started."""

    returncode, pid = 0, -1

    def __init__(self, command: list[str], **_: Any) -> None:
        assert command[1:3] == ["-m", "sdc_guard.cli"]
        done = CliRunner().invoke(main, command[3:])
        self.returncode = done.exit_code

    def poll(self) -> int:
        return self.returncode

    def wait(self, timeout: float) -> int:
        assert timeout > 0
        return self.returncode


def trained(folder: Path, steps: int, **options: Any) -> Guard:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, run=folder, **options) as guard:
        for step in range(steps):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert guard.checkpoint({"model": model}, step) is not None
    return guard


@pytest.mark.parametrize("archive_format", ["torch", "dcp"])
def test_a_guard_keeps_as_many_as_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive_format: str
) -> None:
    monkeypatch.setattr("sdc_guard.archive.retention.keeper.subprocess.Popen", AtOnce)
    trained(tmp_path / "run", 5, keep=2, archive_format=archive_format)
    found = checkpoints(tmp_path / "run" / "archive")
    assert [one.clean for one in found] == [True, True]
    assert found[-1].manifest.step == 4


def test_a_guard_that_keeps_deletes_no_checkpoint_that_something_else_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdc_guard.archive.retention.keeper.subprocess.Popen", AtOnce)
    run = tmp_path / "run"
    # as Accelerate and the Trainer save them, one even in the archive, where it looks like one of
    # the guard's
    others = [tmp_path / "checkpoint-2", run / "archive" / "step=000007", run / "state"]
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, run=run, policy="record", keep=1) as guard:
        for step in range(4):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            for folder in others:
                folder.mkdir(parents=True, exist_ok=True)
                torch.save(model.state_dict(), folder / f"pytorch_model-{step}.bin")
                assert guard.seal(folder, step, wait=True) is not None
            assert guard.checkpoint({"model": model}, step) is not None
    assert guard.health.errors == 0
    for folder in others:
        assert seal_of(folder).exists()
        assert len(list(folder.iterdir())) == 4
    assert [one.manifest.step for one in checkpoints(run / "archive")] == [3]


def test_a_guard_says_once_that_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sdc_guard.archive.retention.keeper.subprocess.Popen", AtOnce)
    monkeypatch.setattr(CliRunner, "invoke", lambda *_: Result)
    monkeypatch.setattr(Result, "exit_code", 2, raising=False)
    trained(tmp_path / "a", 3, keep=2)
    assert caplog.text.count("checkpoints are not deleted") == 1

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("sdc_guard.archive.retention.keeper.subprocess.Popen", refuses)
    trained(tmp_path / "b", 2, keep=2)
    assert "no checkpoint is deleted: no more processes" in caplog.text


def test_a_file_of_several_that_is_cut_off_or_foreign_stands_in_the_way(tmp_path: Path) -> None:
    trained(tmp_path, 2, archive_format="dcp")
    first, second = Inventory(tmp_path).look(0.0).stored
    folder = tmp_path / "archive" / first.name
    assert first.bytes == sum(path.stat().st_size for path in folder.iterdir())
    with (folder / "__0_0.distcp").open("ab") as file:
        file.write(b"!")
    (tmp_path / "archive" / second.name / "notes.txt").touch()
    told = [one.unknown for one in Inventory(tmp_path).look(0.0).stored]
    assert told[0] == "__0_0.distcp is not as large as it was saved"
    assert "notes.txt is there" in told[1]


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "12"])
def test_a_number_to_keep_that_is_none(keep: Any) -> None:
    with pytest.raises(UsageError, match="keep must be at least 1"):
        check_keep(keep)
