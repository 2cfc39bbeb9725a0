"""Checkpoints that several processes write together: what is saved is what is loaded."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed_launch import Outcome, launch
from in_process import bisect

from forensics.oracles.consistency import ConsistencyOracle
from forensics.oracles.trace import TraceOracle
from forensics.readers import guard_archive
from sdc_guard import RunReader, load_checkpoint
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sharded.ack import Ack, ack_name
from sdc_guard.archive.sharded.flat import flattened
from sdc_guard.digest.reference import MASK64
from sdc_guard.errors import CheckpointMismatch

RANKS = 4
MESHES = ("archive_hsdp", "archive_of_two_dimensions", "archive_pipeline")
SCENARIOS = (
    "archive_fsdp2", "archive_ddp", "archive_resharded", "archive_disagreements", "archive_race",
    "archive_busy", *MESHES,
)  # fmt: skip


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios, on four processes."""
    return launch(tmp_path_factory.mktemp("four"), RANKS, SCENARIOS)


@pytest.mark.parametrize("scenario", ["archive_fsdp2", "archive_ddp"])
def test_what_is_saved_is_loaded_by_one_process(four: Outcome, scenario: str) -> None:
    for rank in range(RANKS):
        told = four.told(scenario, rank)
        assert (told["health"], told["events"], told["returned"]) == ("", [], None)
    told = four.told(scenario, 0)
    for folder, content, step in zip(
        told["folders"], (told["whole"], told["later"]), (2, 3), strict=True
    ):
        manifest = Manifest.read(folder)
        assert (manifest.status, manifest.reasons) == ("clean", ())
        assert (manifest.step, manifest.trace_step, manifest.world_size) == (step, step, RANKS)
        loaded = load_checkpoint(folder)
        found = {name: leaf for name, (_, leaf) in flattened(loaded).items()}
        for name, tensor in content.items():
            np.testing.assert_array_equal(found[name].numpy(), tensor)
        assert loaded["step"] == step
        keys = loaded["optimizer"]["param_groups"][0]["params"]
        assert set(loaded["optimizer"]["state"]) == set(keys)  # whole numbers, as they were
    assert load_checkpoint(four.run(scenario))["step"] == 3


def test_values_of_each_rank_are_those_of_the_first(four: Outcome) -> None:
    folder = four.told("archive_ddp", 0)["folders"][0]
    loaded = load_checkpoint(folder)
    assert loaded["rng"].tolist() == [0, 1, 2, 3]
    assert loaded["note"] == {"epoch": 0, 7: "seven"}
    (note,) = Manifest.read(folder).notes
    assert note == "rng is not the same on ranks 0, 1, 2, 3: saved is that of rank 0"


@pytest.mark.parametrize("scenario", ["archive_fsdp2", "archive_ddp"])
def test_each_rank_loads_what_it_had(four: Outcome, scenario: str) -> None:
    for rank in range(RANKS):
        told = four.told(scenario, rank)
        assert told["step"] == 3
        for name, part in told["kept"].items():
            np.testing.assert_array_equal(told["loaded"][name], part)
        if scenario == "archive_ddp":
            for name, tensor in told["later"].items():
                np.testing.assert_array_equal(told["loaded"][name], tensor)


def test_digests_of_the_pieces_add_up_to_those_of_the_whole(four: Outcome) -> None:
    told = four.told("archive_fsdp2", 0)
    folder = told["folders"][0]
    acks = [Ack.read(folder / ack_name(rank)) for rank in range(RANKS)]
    written = [one for ack in acks for one in ack.written]
    manifest = Manifest.read(folder)
    split = 0
    for name, digest in told["digests"].items():
        parts = [one.piece.entry.digest for one in written if one.piece.name == name]  # type: ignore[union-attr]
        split += len(parts) > 1
        assert tuple(sum(values) & MASK64 for values in zip(*parts, strict=True)) == digest
        assert tuple(manifest.tensors[name].digest) == digest
    assert split >= 12  # parameters of several rows, and their moments
    weight = manifest.tensors["model.first.weight"]
    assert (weight.kind, weight.layer, weight.shape) == ("param", "first.weight", (5, 6))
    assert weight.placements == "(Shard(dim=0),)"


def test_replicas_are_written_once_and_by_all_ranks(four: Outcome) -> None:
    folder = four.told("archive_ddp", 0)["folders"][0]
    acks = [Ack.read(folder / ack_name(rank)) for rank in range(RANKS)]
    names = [one.piece.name for ack in acks for one in ack.written]
    assert len(names) == len(set(names))
    assert all(ack.written for ack in acks)


def test_dcp_itself_loads_it(four: Outcome, recwarn: pytest.WarningsRecorder) -> None:
    told = four.told("archive_fsdp2", 0)
    target = {name: torch.zeros(value.shape) for name, value in told["whole"].items()}
    state = {"model": {n.removeprefix("model."): t for n, t in target.items() if n[0] == "m"}}
    dcp.load(state, checkpoint_id=told["folders"][0], no_dist=True)
    for name, tensor in state["model"].items():
        np.testing.assert_array_equal(tensor.numpy(), told["whole"][f"model.{name}"])
    assert len(recwarn)  # of DCP, that it does so in one process


def test_four_ranks_saved_and_two_load(four: Outcome) -> None:
    for rank in range(RANKS):
        told = four.told("archive_resharded", rank)
        assert told["ranks"] == 2
        assert len(told["equal"]) == 20
        assert all(told["equal"].values()), told["equal"]


@pytest.mark.parametrize("scenario", MESHES)
def test_however_ranks_share_the_tensors_they_come_back_whole(four: Outcome, scenario: str) -> None:
    (folder,) = {four.told(scenario, rank)["folder"] for rank in range(RANKS)}
    manifest = Manifest.read(folder)
    assert (manifest.status, manifest.reasons) == ("clean", ())
    found = {name: leaf for name, (_, leaf) in flattened(load_checkpoint(folder)).items()}
    for rank in range(RANKS):
        told = four.told(scenario, rank)
        assert told["health"] == ""
        for name, tensor in told["whole"].items():
            np.testing.assert_array_equal(found[name].numpy(), tensor)


def test_what_each_rank_has_under_one_name_is_not_called_saved(four: Outcome) -> None:
    manifest = Manifest.read(four.told("archive_pipeline", 0)["doubted"])
    assert manifest.status == "suspect"
    told = "optimizer.state.0.exp_avg is not the same on ranks 0, 1, 2, 3: saved is that of rank 0"
    assert told in manifest.reasons


def test_ranks_at_other_steps_are_named_and_nothing_is_written(four: Outcome) -> None:
    for rank in range(RANKS):
        told = four.told("archive_disagreements", rank)
        apart, absent, after = told["said"][1:]
        assert "NotSaved: rank 3 is at step 2, the others at step 1" in apart
        if rank == 1:
            assert "rank 1 came late" in absent
        assert "rank 1 did not come to guard.checkpoint of step 2 within 0.5 s" in absent
        assert after == absent  # nothing new
        assert [folder and folder.name for folder in told["folders"]] == [
            "step=000000", None, None, "step=000003"
        ]  # fmt: skip
        assert told["left"] == ["LATEST", "step=000000", "step=000003"]
        assert told["latest"] == "step=000003\n"
    events = four.told("archive_disagreements", 0)["events"]
    assert [(rank, step) for rank, step, _ in events] == [
        (rank, step) for rank in range(RANKS) for step in (2 if rank == 3 else 1, 2)
    ]


def test_a_copy_that_is_none_is_told_as_a_race(four: Outcome) -> None:
    told = four.told("archive_race", 0)
    assert Manifest.read(told["sound"]).status == "clean"
    manifest = Manifest.read(told["folder"])
    assert (manifest.step, manifest.status) == (2, "suspect")
    told_by = r"ranks? [\d, ]+: \d+ tensors hold step 3 \(.* first\): copied while the training"
    # one rank has only step counters to write, which the trace has no digests of
    of_tensors = [reason for reason in manifest.reasons if "tensors hold" in reason]
    assert len(of_tensors) >= 2  # each rank of its own pieces
    assert all(re.match(told_by, reason) for reason in of_tensors), manifest.reasons
    with pytest.raises(CheckpointMismatch, match="bytes differ from the recorded digest"):
        load_checkpoint(told["folder"])
    older = Manifest.read(told["older"])
    assert (older.step, older.status) == (4, "suspect")
    of_tensors = [reason for reason in older.reasons if "tensors hold" in reason]
    assert len(of_tensors) >= 2
    assert all(re.search(r"hold step 3 \(.* first\): an older copy$", one) for one in of_tensors)
    assert load_checkpoint(four.run("archive_race"))["step"] == 1


def test_a_race_of_several_ranks_is_told_by_scan_and_by_run(four: Outcome, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(four.run("archive_race"), run)
    rows = {row["step"]: row for row in bisect("scan", run, "--json").json["checkpoints"]}
    assert {step: row["status"] for step, row in rows.items()} == {
        1: "clean", 2: "corrupt", 4: "corrupt"
    }  # fmt: skip
    for step in (2, 4):
        assert any("hold step 3" in reason for reason in rows[step]["reasons"]), rows[step]
    found = bisect("run", run, "--json", "--scan")
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (1, 2)
    told = r"stored bytes: its tensors hold step 3, and it says step 2 \(.* first\): saved while"
    assert re.match(told, found.json["evidence"][0])
    with RunReader(run) as reader:
        checkpoints = {one.step: one for one in guard_archive.find(run)}
        oracle = ConsistencyOracle(list(checkpoints.values()), reader)
        assert oracle.judge(checkpoints[1]).verdict == "clean"
        for step in (2, 4):
            said = oracle.judge(checkpoints[step])
            told = rf"its tensors hold step 3, and it says step {step} \(.* first\): saved while"
            assert re.match(told, said.reason), said


def test_a_save_while_one_is_written_is_refused_or_waits(four: Outcome) -> None:
    for rank in range(RANKS):
        told = four.told("archive_busy", rank)
        assert told["refused"] is None
        assert re.search(r"ranks? .* still writes? that of step 0", told["said"])
        assert told["waited"].name == "step=000001"
        assert told["names"] == ["LATEST", "step=000000", "step=000001"]


@pytest.mark.parametrize("scenario", ["archive_fsdp2", "archive_ddp"])
def test_the_trace_of_each_rank_proves_its_part(four: Outcome, scenario: str) -> None:
    found = guard_archive.READER.find(four.run(scenario))
    with RunReader(four.run(scenario)) as reader:
        oracle = TraceOracle(reader)
        judged = [oracle.judge(one) for one in found]
        assert [one.verdict for one in judged] == ["clean", "clean"], judged
        assert re.match(r"\d+ of \d+ recorded tensors equal the trace", judged[0].reason)


def test_the_trace_convicts_a_race(four: Outcome) -> None:
    found = guard_archive.READER.find(four.run("archive_race"))
    with RunReader(four.run("archive_race")) as reader:
        oracle = TraceOracle(reader)
        assert [oracle.judge(one).verdict for one in found] == ["clean", "corrupt", "corrupt"]


def test_forensics_reads_it(four: Outcome, tmp_path: Path) -> None:
    told = four.told("archive_fsdp2", 0)
    found = guard_archive.READER.find(four.run("archive_fsdp2"))
    assert [(one.step, one.status, one.readable) for one in found] == [
        (2, "clean", True), (3, "clean", True),
    ]  # fmt: skip
    content = guard_archive.READER.open(found[0])
    assert content.step == 2
    for name, tensor in told["whole"].items():
        np.testing.assert_array_equal(content.tensors[name].read().numpy(), tensor)
    integrity = guard_archive.READER.check(found[0])
    assert (integrity.damaged, integrity.unchecked) == ({}, ())
    assert set(integrity.intact) == set(Manifest.read(found[0].path).tensors)
    folder = shutil.copytree(found[0].path, tmp_path / "step=000002")
    ack = Ack.read(folder / ack_name(1))
    one = next(one for one in ack.written if one.piece.name == "model.first.weight")
    content = bytearray((folder / one.file).read_bytes())
    content[one.data + 5] ^= 1 << 2
    (folder / one.file).write_bytes(content)
    (damaged,) = guard_archive.READER.find(folder)
    integrity = guard_archive.READER.check(damaged)
    first = one.piece.place
    assert isinstance(first, int)
    where = f"element {first + 1}, bits [10]"
    assert set(integrity.damaged) == {one.file, "model.first.weight"}
    assert where in integrity.damaged["model.first.weight"]
    with pytest.raises(CheckpointMismatch, match=rf"model\.first\.weight: .*{re.escape(where)}"):
        load_checkpoint(folder)
    (folder / one.file).write_bytes(content[:-9])
    (cut,) = guard_archive.READER.find(folder)
    assert not cut.readable
    assert one.file in cut.reasons[0]
