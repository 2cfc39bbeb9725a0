"""Checkpoints that a script writes by itself, sealed by its guard."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from in_process import bisect
from recorded import rows
from safetensors.torch import save_file

from forensics.index import index
from forensics.readers.known import reader_of
from sdc_guard import Guard
from sdc_guard.archive.sealing.contents import contents_of
from sdc_guard.archive.sealing.seal_file import Guarded, Seal, seal_at


class Training:
    """A small model under AdamW, with a guard, that saves by itself."""

    def __init__(self, run: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 2)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        options = {"first_step": 1, "policy": "record", "probe_every": None, **options}
        self.guard = Guard(self.model, self.optimizer, run=run, **options)

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.model(torch.randn(8, 5)).square().mean()
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        objects = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**objects, "step": self.guard.step - 1, "rng": torch.get_rng_state()}

    def save(self, file: Path) -> Path:
        torch.save(self.state(), file)
        return file


# of a process that is the only one
ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "run", digest_budget=None)
    yield made
    made.guard.close()


def guarded(seal: Seal | None) -> Guarded:
    assert seal is not None
    assert seal.guarded is not None
    return seal.guarded


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_a_file_that_holds_what_was_trained_is_clean_and_a_flipped_byte_is_named(
    training: Training, tmp_path: Path
) -> None:
    training.steps(3)
    file = training.save(tmp_path / "step-3.pt")
    assert training.guard.seal(file, 3) is None  # it is done beside the training
    training.steps(2)
    training.guard.close()
    known = guarded(seal_at(file))
    assert (known.attempt, known.trace_step, known.status, known.reasons) == (1, 3, "clean", ())
    parameters = [key for key in known.tensors.values() if key[0] == "param"]
    assert sorted(parameters) == sorted(("param", n) for n, _ in training.model.named_parameters())
    assert sum(key[0] in ("exp_avg", "exp_avg_sq") for key in known.tensors.values()) == 12
    listed = rows(tmp_path / "run", "step, path, format, status, reason", "checkpoints")
    assert listed == [(3, "../step-3.pt", "torch", "clean", "")]
    assert training.guard.health.errors == 0
    assert bisect("scan", tmp_path / "run").code == 0
    weight = training.model.state_dict()["2.weight"]
    stored = torch.load(file, weights_only=True)["model"]["2.weight"]
    assert not torch.equal(stored, weight)  # two steps later
    flip(file, file.read_bytes().index(stored.numpy().tobytes()) + 4)
    found = bisect("scan", tmp_path / "run", "--json")  # the run knows where it lies
    (row,) = found.json["checkpoints"]
    assert (found.code, row["status"], row["step"]) == (1, "corrupt", 3)
    assert row["damaged"] == {
        "step-3.pt": "not the bytes that were sealed",
        "model.2.weight": "CRC mismatch in record data/7",
    }


def test_a_search_of_the_run_judges_what_was_sealed_by_the_trace(
    training: Training, tmp_path: Path
) -> None:
    for step in (1, 2, 3, 4):
        training.steps(1)
        training.guard.seal(training.save(tmp_path / f"step-{step}.pt"), step)
        if step == 2:
            with torch.no_grad():
                training.model[2].bias[1] += 1
    training.guard.close()
    assert bisect("index", tmp_path / "run").code == 0
    found = bisect("run", tmp_path / "run", "--json")
    assert found.code == 1, found.err
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (2, 3)
    assert "2.bias changed between step 2 and step 3" in found.out


def test_sealing_again_by_command_keeps_what_the_guard_said_of_the_same_bytes(
    training: Training, tmp_path: Path
) -> None:
    training.steps(1)
    file = training.save(tmp_path / "a.pt")
    known = guarded(training.guard.seal(file, 1, wait=True))
    assert bisect("seal", file, "--again").code == 0
    assert guarded(seal_at(file)) == known
    training.save(file)
    training.steps(1)
    training.save(file)
    assert bisect("seal", file, "--again").code == 0
    seal = seal_at(file)
    assert seal is not None
    assert seal.guarded is None


def test_a_change_without_the_guard_is_suspect(training: Training, tmp_path: Path) -> None:
    training.steps(2)
    with torch.no_grad():
        training.model[0].weight[1, 1] += 1
    file = training.save(tmp_path / "a.pt")
    known = guarded(training.guard.seal(file, 2, wait=True))
    assert known.status == "suspect"
    assert known.reasons == ("0.weight: bytes differ from what step 2 left",)
    (found,) = index(file)
    assert (found.status, found.reasons) == (known.status, known.reasons)
    assert bisect("scan", file).code == 1


def test_a_save_that_was_overtaken_is_told_with_the_step_that_it_holds(
    training: Training, tmp_path: Path
) -> None:
    training.steps(4)
    reference = training.save(tmp_path / "of-4.pt")
    training.steps(1)
    late = training.save(tmp_path / "late.pt")  # was to hold step 4
    training.steps(1)
    assert guarded(training.guard.seal(reference, 4, wait=True)).status == "clean"
    known = guarded(training.guard.seal(late, 4, wait=True))
    assert known.status == "suspect"
    assert known.reasons[0].startswith("holds step 5, not step 4: ")


def test_the_training_is_bit_for_bit_the_same_with_seals(tmp_path: Path) -> None:
    for sealing in (True, False):
        training = Training(tmp_path / str(sealing), digest_budget=0.0)
        for step in (1, 2, 3):
            training.steps(1)
            file = training.save(tmp_path / f"{sealing}-{step}.pt")
            if sealing:
                training.guard.seal(file, step, wait=step == 2)
        training.guard.close()
    one, other = [torch.load(tmp_path / f"{s}-3.pt", weights_only=True) for s in (True, False)]
    assert torch.equal(one["rng"], other["rng"])
    assert all(torch.equal(tensor, other["model"][name]) for name, tensor in one["model"].items())


def test_labels_and_incidents_are_doubts_as_with_checkpoint(
    training: Training, tmp_path: Path
) -> None:
    file = training.save(tmp_path / "a.pt")
    early = guarded(training.guard.seal(file, 1, wait=True))
    assert early.status == "untested"
    assert early.reasons[1:] == ("no step was recorded before this checkpoint",)
    training.steps(2)
    file = training.save(tmp_path / "a.pt")
    ahead = guarded(training.guard.seal(file, 7, wait=True))
    assert (ahead.status, ahead.reasons[0]) == (
        "suspect",
        "labelled step 7, but the trace is at step 2: give Guard(first_step=...) +5",
    )
    with torch.no_grad():
        training.model[0].weight[0, 0] += 1
    training.steps(2)  # the change is found
    file = training.save(tmp_path / "a.pt")
    doubted = guarded(training.guard.seal(file, 4, wait=True))
    assert doubted.status == "suspect"
    assert doubted.reasons[0].startswith("incident open since step 3: ")
    assert len(doubted.reasons) == 1  # it holds what was trained


def test_what_is_not_finite_is_suspect(training: Training, tmp_path: Path) -> None:
    training.steps(1)
    training.model[1].running_mean[2] = torch.nan
    known = guarded(training.guard.seal(training.save(tmp_path / "a.pt"), 1, wait=True))
    assert known.reasons == ("not finite: model.1.running_mean",)
    assert known.status == "suspect"


def test_with_a_digest_budget_everything_is_compared_all_the_same(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", digest_budget=0.0)
    training.steps(3)
    file = training.save(tmp_path / "a.pt")
    known = guarded(training.guard.seal(file, 3, wait=True))
    assert (known.status, len(known.tensors)) == ("clean", 6 * 4)
    training.steps(1)
    behind = guarded(training.guard.seal(file, 2, wait=True))
    assert behind.status == "untested"  # the trace has nothing of that step
    training.guard.close()


def test_nothing_foreseeable_is_raised_and_each_is_told_once(
    training: Training, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training.steps(1)
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        assert training.guard.seal(tmp_path / "gone.pt", 1, wait=True) is None
        assert training.guard.seal(tmp_path / "gone-too.pt", 1, wait=True) is None
    assert [record.message for record in caplog.records] == [
        f"SDC Guard: {tmp_path / 'gone.pt'} is not sealed: no such file or folder; training goes on"
    ]
    (tmp_path / "empty").mkdir()
    training.guard.seal(tmp_path / "empty", 1)
    text = tmp_path / "text.pt"
    text.write_text("no checkpoint")
    odd = guarded(training.guard.seal(text, 1, wait=True))
    assert odd.status == "untested"
    assert "not a torch.save zip file" in odd.reasons[-1]
    training.guard.seal("", 1)
    training.guard.seal(text, -1)
    training.guard.seal(text, None)  # type: ignore[arg-type] # because a script may do that
    training.steps(1)
    training.guard.close()
    told = rows(tmp_path / "run", "detail", "events WHERE kind = 'not sealed'")
    paths = sorted(json.loads(detail)["path"] for (detail,) in told)
    assert paths == ["../empty", "../gone-too.pt", "../gone.pt"]
    assert training.guard.health.errors == 3  # counted, and told
    assert training.guard.seal(text, 2, wait=True) is None  # closed


def test_a_cut_file_is_suspect_or_untested_and_never_clean(
    training: Training, tmp_path: Path
) -> None:
    training.steps(1)
    file = training.save(tmp_path / "a.pt")
    whole = file.read_bytes()
    for size in (0, 3, 500, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert guarded(training.guard.seal(file, 1, wait=True)).status != "clean"
    file.write_bytes(whole)
    first = torch.load(file, weights_only=True)["model"]["0.weight"].numpy().tobytes()
    flip(file, whole.index(first))
    known = guarded(training.guard.seal(file, 1, wait=True))
    assert known.reasons[0] == "model.0.weight: CRC mismatch"
    assert known.status == "suspect"


def test_a_seal_of_before_is_gone_as_soon_as_the_file_is_sealed_anew(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.steps(1)
    file = training.save(tmp_path / "last.pt")
    training.guard.seal(file, 1, wait=True)
    go_on = threading.Event()
    inner = contents_of
    monkeypatch.setattr(
        "sdc_guard.archive.sealing.make.contents_of", lambda path: go_on.wait(30) and inner(path)
    )
    training.steps(1)
    training.save(file)
    training.guard.seal(file, 2)
    assert seal_at(file) is None  # else a process that dies now would leave a wrong one
    training.steps(1)
    training.save(file)  # while the one before is read
    training.guard.seal(file, 3)
    training.steps(1)
    go_on.set()
    training.guard.close()
    assert guarded(seal_at(file)).trace_step == 3
    assert guarded(seal_at(file)).status == "clean"
    # nothing was accused of what took its place
    assert rows(tmp_path / "run", "step, status", "checkpoints") == [(1, "clean"), (3, "clean")]


@ALONE
def test_names_are_those_of_the_readers(training: Training, tmp_path: Path) -> None:
    """A seal is understood where the files are read in another way."""
    training.steps(1)
    model = training.model.state_dict()
    pt, ckpt = training.save(tmp_path / "a.pt"), training.save(tmp_path / "b.ckpt")
    st = tmp_path / "c.safetensors"
    save_file(model, st)
    trainer = tmp_path / "checkpoint-1"
    trainer.mkdir()
    save_file(model, trainer / "model.safetensors")
    torch.save(training.optimizer.state_dict(), trainer / "optimizer.pt")
    torch.save({"cpu": torch.get_rng_state()}, trainer / "rng_state.pth")
    (trainer / "trainer_state.json").write_text('{"global_step": 1}')
    shards = tmp_path / "shards"
    shards.mkdir()
    names = sorted(model)
    for number, part in enumerate((names[:4], names[4:]), start=1):
        file = shards / f"model-{number:05}-of-00002.safetensors"
        save_file({name: model[name] for name in part}, file)
    spread = tmp_path / "step-1"
    dcp.save(training.state(), checkpoint_id=spread)
    for path in (pt, ckpt, st, trainer, shards, spread):
        (read,) = index(path)
        known = guarded(training.guard.seal(path, 1, wait=True))
        assert known.status == "clean", (path, known.reasons)
        seal = seal_at(path)
        assert seal is not None
        expected = reader_of(read.format).open(read).tensors
        assert (seal.format, set(seal.tensors)) == (read.format, set(expected))
        assert {name: one.shape for name, one in seal.digests.items()} == {
            name: tuple(one.shape) for name, one in expected.items()
        }
        assert read.path == path


@pytest.mark.parametrize("late", [False, True])
def test_shards_of_this_rank_prove_nothing_and_accuse_nothing(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    training.steps(1)
    state, file = training.state(), tmp_path / "a.pt"
    # to the guard as if its digest were of a part of what the file holds whole
    state["model"]["0.weight"] = state["model"]["0.weight"] + 1
    torch.save(state, file)
    if late:
        training.steps(1)
    monkeypatch.setattr("sdc_guard.seals._is_part", lambda layer, size: layer.name != "2.bias")
    known = guarded(training.guard.seal(file, 1, wait=True))
    assert known.status == "untested"
    assert any("tensors are one rank's shards, and not compared" in x for x in known.reasons)
    # step counters are the same on every rank
    assert {layer for kind, layer in known.tensors.values() if kind != "step"} == {"2.bias"}
    monkeypatch.setattr("sdc_guard.seals._is_part", lambda *_: True)
    known = guarded(training.guard.seal(file, 1, wait=True))
    assert known.status == "untested"
    assert {kind for kind, _ in known.tensors.values()} <= {"step"}


@pytest.mark.parametrize(("late_files", "status"), [(1, "clean"), (99, "suspect")])
def test_files_of_other_ranks_may_come_while_a_folder_is_sealed(
    training: Training,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    late_files: int,
    status: str,
) -> None:
    training.steps(1)
    folder = tmp_path / "saved"
    folder.mkdir()
    training.save(folder / "state.pt")
    reads: list[Path] = []

    def read(path: Path) -> Any:
        found = contents_of(path)
        reads.append(path)
        if len(reads) <= late_files:
            torch.save({"cpu": torch.get_rng_state()}, folder / f"rng_state_{len(reads)}.pth")
        return found

    monkeypatch.setattr("sdc_guard.archive.sealing.make.contents_of", read)
    monkeypatch.setattr("sdc_guard.archive.sealing.make._PAUSE", 0.0)
    seal = training.guard.seal(folder, 1, wait=True)
    known = guarded(seal)
    assert known.status == status, known.reasons
    assert ("its files changed while they were sealed" in known.reasons) == (status == "suspect")
    if status == "clean":
        assert seal is not None
        assert sorted(seal.files) == ["rng_state_1.pth", "state.pt"]
    assert len(reads) <= 10


def test_waiting_for_a_seal_ends_though_the_disk_hangs(
    training: Training,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    training.steps(1)
    file = training.save(tmp_path / "a.pt")
    go_on = threading.Event()
    inner = contents_of
    with monkeypatch.context() as patched:
        patched.setattr("sdc_guard.seals._PATIENCE", 0.2)
        patched.setattr(
            "sdc_guard.archive.sealing.make.contents_of",
            lambda path: go_on.wait(30) and inner(path),
        )
        assert training.guard.seal(file, 1, wait=True) is None
        assert "not sealed yet" in caplog.text
        assert seal_at(file) is None
        go_on.set()
    training.guard.close()
    assert guarded(seal_at(file)).status == "clean"  # it is made all the same


def test_the_guards_step_needs_no_note_that_it_is_in_the_name(
    training: Training, tmp_path: Path
) -> None:
    training.steps(3)
    run, file = tmp_path / "run", tmp_path / "it3.pt"
    state = training.state()
    del state["step"]
    torch.save(state, file)
    (before,) = index(file)
    assert before.notes == ("its step is the one in its name",)
    training.guard.seal(file, 3, wait=True)
    assert [(one.step, one.notes) for one in index(run)] == [(3, ())]
