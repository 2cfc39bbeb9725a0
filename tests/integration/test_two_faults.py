"""Archives with a damaged file and a training that went wrong: `run` names both."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from damaged_archives import flip_record
from in_process import bisect


def archive(folder: Path, wrong_from: int | None) -> Path:
    """Ten checkpoints; the values of one weight are NaN from a step on."""
    generator = torch.Generator().manual_seed(8)
    weight = torch.randn(32, 32, generator=generator)
    for step in range(100, 1100, 100):
        weight = weight + 1e-3 * torch.randn(32, 32, generator=generator)
        state = {"w": weight.clone(), "step": step}
        if wrong_from is not None and step >= wrong_from:
            state["w"][3, 4] = torch.nan
        torch.save(state, folder / f"step-{step}.pt")
    return folder


def test_the_first_is_named_and_the_other_is_mentioned(tmp_path: Path) -> None:
    archive(tmp_path, wrong_from=800)
    flip_record(tmp_path / "step-500.pt", "data/0")
    answer = bisect("run", tmp_path, "--json")
    assert answer.code == 1
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (400, 500)
    assert (answer.json["class"], answer.json["proven"]) == ("stored bytes", True)
    assert answer.json["damaged_files"] == [500]
    state = answer.json["state"]
    assert (state["last_clean"], state["first_corrupt"]) == (700, 800)
    assert (state["verdict"], state["proven"]) == ("corrupt", False)
    assert state["reason"] == "w: one element is NaN"
    text = bisect("run", tmp_path).out
    assert text.startswith(
        "Checkpoint 500 is the first corrupt one by its file, which is damaged: bracket (400, 500]"
        ", proven; do not restore from it. The training went wrong, too: its state in (700, 800], "
        "suspected."
    )
    assert "a second finding, of the training: a transition was seen in (700, 800]: w: " in text


def test_sound_values_are_no_proof_of_a_sound_training(tmp_path: Path) -> None:
    archive(tmp_path, wrong_from=None)
    flip_record(tmp_path / "step-500.pt", "data/0")
    answer = bisect("run", tmp_path, "--json")
    assert (answer.json["first_corrupt"], answer.json["state"]["verdict"]) == (500, "unknown")
    assert any("that does not prove it sound" in line for line in answer.json["evidence"])


def test_wherever_the_two_are_both_are_in_the_answer(tmp_path: Path) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        damaged, wrong = chance.sample(range(200, 1000, 100), 2)
        folder = tmp_path / str(seed)
        folder.mkdir()
        archive(folder, wrong_from=wrong)
        flip_record(folder / f"step-{damaged}.pt", "data/0")
        found = bisect("run", folder, "--json").json
        assert found["first_corrupt"] == damaged, seed
        state = found["state"]
        assert state["last_clean"] < wrong <= state["first_corrupt"], (seed, damaged, wrong)
