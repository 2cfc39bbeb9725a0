"""What two ranks saved with DCP is read by one process, whole and bit for bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from distributed_launch import Outcome, launch

from forensics.checkpoint import Checkpoint
from forensics.content import Content
from forensics.readers import dcp, dcp_hf
from sdc_guard.digest.reference import words
from sdc_guard.errors import CheckpointUnreadable


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios, on two processes."""
    scenarios = ("fsdp2_saves", "odd_saves", "hf_saves")
    return launch(tmp_path_factory.mktemp("two"), 2, scenarios)


def only(path: Path) -> Checkpoint:
    (found,) = dcp.READER.find(path)
    return found


def equal(content: Content, expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        read = content.tensors[name].read()
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape), name
        assert content.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(words(read.contiguous()), words(tensor.contiguous())), name


def test_fsdp2_parameters_and_moments(two: Outcome) -> None:
    run = two.run("fsdp2_saves")
    expected = two.told("fsdp2_saves", 0)["read"]
    found = {checkpoint.step: checkpoint for checkpoint in dcp.READER.find(run)}
    assert list(found) == [3, 4]
    for step, checkpoint in found.items():
        assert (checkpoint.status, checkpoint.reasons, checkpoint.notes) == ("untested", (), ())
        content = dcp.READER.open(checkpoint)
        assert len(expected[step]) == 5 + 15  # parameters, and three values of each in the state
        assert set(content.tensors) == set(expected[step]) | {"train_state.step"}
        equal(content, expected[step])
        assert content.step == step
        assert len(content.tensors["model.first.weight"].files) == 2
        integrity = dcp.READER.check(checkpoint)
        assert (set(integrity.intact), integrity.damaged) == (set(content.tensors), {})


def test_odd_tensors_and_values_of_each_rank(two: Outcome) -> None:
    checkpoint = only(two.run("odd_saves") / "odd")
    expected = torch.load(two.run("odd_saves") / "whole.pt", weights_only=True)
    assert all(all(two.told("odd_saves", rank)["loaded"].values()) for rank in (0, 1))
    content = dcp.READER.open(checkpoint)
    assert set(content.tensors) == set(expected)
    equal(content, expected)
    assert content.numbers == {"lr": 0.25, "only of 0": 0, "only of 1": 1, "step": 11}
    assert (checkpoint.step, checkpoint.readable) == (11, True)
    assert set(dcp.READER.check(checkpoint).intact) == set(expected)


@pytest.mark.parametrize("name", ["boxes", "both"])
def test_the_form_of_hugging_face(two: Outcome, name: str) -> None:
    (checkpoint,) = dcp_hf.READER.find(two.run("hf_saves") / name)
    expected = two.told("hf_saves", 0)["read"]
    content = dcp_hf.READER.open(checkpoint)
    assert set(content.tensors) == set(expected)
    equal(content, expected)
    integrity = dcp_hf.READER.check(checkpoint)
    sure = integrity.intact if name == "both" else integrity.unchecked
    assert (set(sure), integrity.damaged) == (set(expected), {})


def test_a_lost_shard_leaves_the_other_ranks_tensors(two: Outcome, tmp_path: Path) -> None:
    folder = shutil.copytree(two.run("odd_saves") / "odd", tmp_path / "step-4")
    (folder / "__0_0.distcp").write_bytes(b"")
    checkpoint = only(folder)
    (reason,) = checkpoint.reasons
    assert reason.startswith("unreadable: shard __0_0.distcp is empty (0 of ")
    assert not checkpoint.readable
    content = dcp.READER.open(checkpoint)
    integrity = dcp.READER.check(checkpoint)
    assert integrity.intact
    for name, tensor in content.tensors.items():
        lost = folder / "__0_0.distcp" in tensor.files
        assert lost == (name in integrity.damaged)
        if lost:
            with pytest.raises(CheckpointUnreadable, match=r"__0_0\.distcp ends at byte 0"):
                tensor.read()
        else:
            tensor.read()


def test_a_shard_of_the_next_step_is_told_where_a_step_is_in_it(
    two: Outcome, tmp_path: Path
) -> None:
    run = two.run("fsdp2_saves")
    folder = shutil.copytree(run / "step-3", tmp_path / "step-3")
    content = dcp.READER.open(only(folder))
    (holder,) = content.tensors["train_state.step"].files
    shutil.copy2(run / "step-4" / holder.name, folder / holder.name)
    checkpoint = only(folder)
    assert (checkpoint.step, checkpoint.named_step) == (4, 3)
    os.utime(folder / ".metadata", (0, 0))
    assert only(folder).status == "suspect"
