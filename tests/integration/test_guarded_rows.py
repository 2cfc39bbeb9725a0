"""Accidents that others reported, as they meet archives that a guard made or sealed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import archive_bytes as made
import pytest
import torch
from archive_bytes import AS_EVER, Archive, Training
from in_process import Answer, bisect
from safetensors.torch import save_file

from sdc_guard import load_checkpoint


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Archive]:
    """A training's files in two formats."""
    return {name: made.sealed(tmp_path_factory.mktemp(name), name) for name in ("dcp", "trainer")}


def row(answer: Answer, step: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = answer.json["checkpoints"]
    (one,) = [one for one in found if one["step"] == step]
    return one


def told(one: dict[str, Any]) -> str:
    return json.dumps([one["reasons"], one["damaged"], one["notes"]])


def cut(file: Path, share: float) -> None:
    os.truncate(file, int(file.stat().st_size * share))


def test_a05_a_lightning_file_that_was_cut_off_beside_last(tmp_path: Path) -> None:
    one = made.sealed(tmp_path, "lightning")
    shutil.copy(tmp_path / "saved/epoch=0-step=7.ckpt", tmp_path / "saved/last.ckpt")
    cut(tmp_path / "saved/epoch=0-step=5.ckpt", 0.6)
    answer = bisect("scan", one.root / "saved", "--json")
    assert [found["step"] for found in answer.json["checkpoints"]] == [3, 5, 7]
    assert "bytes that were sealed" in told(row(answer, 5))
    assert row(answer, 5)["status"] != "clean"
    assert "last.ckpt" in told(row(answer, 7))
    assert row(answer, 7)["status"] == "clean"


def test_a06_a_checkpoint_that_is_not_there_makes_the_answer_a_range(tmp_path: Path) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    for step in range(1, 9):
        one.steps(1)
        if step == 7:
            with torch.no_grad():
                one.model.first.bias[0] += 1  # between steps 7 and 8
        if step in (2, 4, 8):
            one.guard.checkpoint(one.objects, step)
    one.guard.close()
    assert "no checkpoint at 6" in bisect("index", tmp_path / "run").out
    found = bisect("run", tmp_path / "run", "--json").json
    assert (found["last_clean"], found["first_corrupt"]) == (4, 8)


def test_a07_a_sealed_folder_without_its_trainer_state(
    sealed: Mapping[str, Archive], tmp_path: Path
) -> None:
    one = sealed["trainer"].copied(tmp_path / "one")
    (one.root / "saved/checkpoint-5/trainer_state.json").unlink()
    found = row(bisect("scan", one.root / "run", "--json"), 5)
    assert found["status"] == "corrupt"
    assert found["damaged"]["trainer_state.json"].startswith("missing, and it was there when")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("how", ["gone", "empty", "half"])
def test_a12_a13_a_sealed_dcp_directory_without_a_part(tmp_path: Path, name: str, how: str) -> None:
    one = made.sealed(tmp_path, "dcp")
    file = tmp_path / "saved/step-5" / name
    if how == "gone":
        file.unlink()
    else:
        cut(file, 0.0 if how == "empty" else 0.5)
    answer = bisect("scan", one.root / "run", "--json")
    found = row(answer, 5)
    assert found["status"] == "corrupt"
    assert name in found["damaged"]
    assert answer.code == 1
    assert {row(answer, step)["status"] for step in (3, 7)} == {"clean"}


def test_a15_a_sealed_folder_of_another_number_than_it_holds(
    sealed: Mapping[str, Archive], tmp_path: Path
) -> None:
    saved = sealed["trainer"].copied(tmp_path / "one").root / "saved"
    place = saved / "checkpoint-5"
    place.rename(saved / "checkpoint-6")
    Path(f"{place}{made.SEAL}").rename(saved / f"checkpoint-6{made.SEAL}")
    answer = bisect("scan", saved, "--json")
    assert answer.code in (0, 1)
    found = row(answer, 5)  # by what is in it
    assert "checkpoint-6" in json.dumps(found)


def test_a17_a18_numbers_and_no_times_and_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    one = Training(run, AS_EVER)
    one.steps(1)
    steps = (900, 999_999, 1_000_000)
    for step in steps:  # one state under three labels: suspect, and whole
        one.guard.checkpoint(one.objects, step)
    one.guard.close()
    for place, step in enumerate(steps):
        os.utime(run / f"archive/step={step:06d}", (1e9 - place, 1e9 - place))
    cut(run / "archive/step=1000000/state.pt", 0.1)
    answer = bisect("scan", run, "--json")
    assert [found["step"] for found in answer.json["checkpoints"]] == list(steps)
    assert row(answer, 1_000_000)["status"] == "corrupt"
    assert "truncated" in told(row(answer, 1_000_000))
    for folder in run.glob("archive/step=*"):  # as if the labels had been right, before checksums
        content = json.loads((folder / "manifest.json").read_text())
        del content["own_xxh3"]
        content |= {"status": "clean", "reasons": []}
        (folder / "manifest.json").write_text(json.dumps(content))
    (run / "archive/step=1000000/manifest.json").write_text("{")
    (run / "run.json").unlink()
    assert load_checkpoint(run)["step"] == 999_999
    assert "passed over step=1000000, manifest.json cannot be read" in caplog.text


def test_a22_a_sealed_folder_of_shards_of_which_one_is_missing(tmp_path: Path) -> None:
    one = Training(tmp_path / "run", AS_EVER)
    one.steps(3)
    folder = tmp_path / "step-3"
    folder.mkdir()
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    state = dict(one.model.state_dict())
    placed = {name: names[number % 3] for number, name in enumerate(state)}
    for file in names:
        save_file({name: state[name] for name in state if placed[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    one.guard.seal(folder, 3, wait=True)
    one.guard.close()
    assert row(bisect("scan", tmp_path / "run", "--json"), 3)["status"] == "clean"
    (folder / names[1]).unlink()
    answer = bisect("scan", tmp_path / "run", "--json")
    assert row(answer, 3)["status"] == "corrupt"
    assert names[1] in row(answer, 3)["damaged"]
