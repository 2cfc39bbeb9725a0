"""A file that holds another step than it says: named when it is saved or sealed, and ever after."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from archive_bytes import AS_EVER, Training
from in_process import bisect

from sdc_guard import load_checkpoint
from sdc_guard.archive import save
from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sealing.seal_file import seal_at
from sdc_guard.errors import CheckpointMismatch

State = dict[str, Any]


def states(one: Training, count: int) -> dict[int, State]:
    """What each of some steps leaves, by step."""
    found = {}
    for step in range(1, count + 1):
        one.steps(1)
        found[step] = copy.deepcopy(one.state())
    return found


def rows(run: Path) -> Mapping[int, dict[str, Any]]:
    return {row["step"]: row for row in bisect("scan", run, "--json").json["checkpoints"]}


@pytest.mark.parametrize("other", [4, 6])
def test_a_payload_of_another_step_is_told_with_that_step(other: int, tmp_path: Path) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    kept: State = {}
    write = torch.save

    def late(payload: State, file: Path) -> None:
        if other > 5:
            one.steps(1)  # the payload shares its memory
            one.guard.flush()
        write({**payload, **kept}, file)

    for step in range(1, 6):
        one.steps(1)
        if step == 2:
            assert one.guard.checkpoint(one.objects, 2) is not None
        if step == other:
            kept = copy.deepcopy(one.state())
    with mock.patch.object(save.torch, "save", late):
        folder = one.guard.checkpoint(one.objects, 5)
    one.guard.close()
    assert folder is not None
    manifest = Manifest.read(folder)
    how = "copied while the training went on" if other > 5 else "an older copy"
    # 6 parameters, and two moments of each; the trace has no digests of step counters
    assert manifest.reasons == (f"18 tensors hold step {other} (model.first.weight first): {how}",)
    assert manifest.status == "suspect"
    with pytest.raises(CheckpointMismatch):
        load_checkpoint(folder)
    assert load_checkpoint(tmp_path / "run")["step"] == 2
    row = rows(tmp_path / "run")[5]
    assert row["status"] == "corrupt"
    assert manifest.reasons[0] in row["reasons"]
    found = bisect("run", tmp_path / "run", "--json")
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (2, 5)
    told = f"its tensors hold step {other}, and it says step 5 (model.first.weight first)"
    assert found.json["evidence"][0].startswith(f"stored bytes: {told}")


def test_bytes_of_no_step_are_no_race(tmp_path: Path) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    one.steps(3)
    write = torch.save

    def wrong(payload: State, file: Path) -> None:
        changed = copy.deepcopy(payload)
        changed["model"]["first.weight"].view(torch.int32)[0, 2] ^= 1 << 20
        write(changed, file)

    with mock.patch.object(save.torch, "save", wrong):
        folder = one.guard.checkpoint(one.objects, 3)
    one.guard.close()
    assert folder is not None
    assert Manifest.read(folder).reasons == (
        "model.first.weight: bytes differ from the recorded digest (element 2, bits [20])",
    )


@pytest.mark.parametrize("other", [3, 5])
def test_a_sealed_file_of_another_step_is_named_by_seal_scan_and_run(
    other: int, tmp_path: Path
) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    left = states(one, 7)
    for step, of in ((2, 2), (4, other), (6, 6)):
        torch.save({**left[of], "step": step}, tmp_path / f"step-{step}.pt")
        one.guard.seal(tmp_path / f"step-{step}.pt", step, wait=True)
    one.guard.close()
    seal = seal_at(tmp_path / "step-4.pt")
    assert seal is not None
    assert seal.guarded is not None
    assert seal.guarded.reasons[0].startswith(f"holds step {other}, not step 4: ")
    found = rows(tmp_path / "run")
    assert {step: row["status"] for step, row in found.items()} == {
        2: "clean", 4: "suspect", 6: "clean"
    }  # fmt: skip
    assert found[4]["reasons"][0] == seal.guarded.reasons[0]
    told = bisect("run", tmp_path / "run", "--json", "--scan").json
    assert (told["last_clean"], told["first_corrupt"]) == (2, 4)
    assert told["evidence"][0].startswith(f"its tensors hold step {other}, and it says step 4 (")
    assert told["state"]["last_clean"] == 6  # the training itself went on soundly


def test_a_sealed_file_with_one_tensor_that_no_step_left_is_not_clean_to_the_trace(
    tmp_path: Path,
) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    left = states(one, 5)
    left[4]["model"]["second.bias"][3] += 1
    for step in (2, 4):
        torch.save({**left[step], "step": step}, tmp_path / f"step-{step}.pt")
        one.guard.seal(tmp_path / f"step-{step}.pt", step, wait=True)
    one.guard.close()
    told = bisect("run", tmp_path / "run", "--json").json
    assert (told["last_clean"], told["first_corrupt"]) == (2, 4)
    assert told["evidence"][0] == "model.second.bias: not the bits of step 4"
