"""The recorded runs show what their truth says, by the commands that their page names."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import preloaded
import pytest
from conftest import ROOT
from in_process import bisect

from sdc_guard import RunReader
from sdc_guard.store.run_file import RunFile
from sdc_guard.store.schema import FORMAT_VERSION, TABLES

RECORDED = ROOT / "sample_runs" / "recorded"
NAMES = ("bad_batch", "clean", "gradient_flip", "loss_spike", "storage_fault", "weight_flip")
AGAIN = "python sample_runs/record.py records them again"
LARGEST = 2_000_000  # bytes of all of them, as git stores them

Copied = Callable[[str], Path]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """A copy of each run, made once: commands write into RUN/bisect."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in NAMES:
        shutil.copytree(RECORDED / name, folder / name)
    return folder.joinpath


def truth(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.truth.json").read_text("utf-8"))
    return content


def bracket(known: Mapping[str, Any]) -> tuple[int, int]:
    """The checkpoints around the step at which something was done."""
    low = (known["step"] - 1) // known["checkpoint_every"] * known["checkpoint_every"]
    return low, low + known["checkpoint_every"]


def test_there_are_six_each_with_its_truth() -> None:
    runs = sorted(path.parent.name for path in RECORDED.glob("*/run.json"))
    truths = sorted(path.name for path in RECORDED.glob("*.truth.json"))
    assert tuple(runs) == NAMES
    assert truths == [f"{name}.truth.json" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_format_is_the_one_that_is_written_today(name: str) -> None:
    recorded = json.loads((RECORDED / name / "run.json").read_text("utf-8"))["format"]
    assert recorded == FORMAT_VERSION, AGAIN
    with RunReader(RECORDED / name) as reader:
        for table in TABLES:
            reader.rows(f"SELECT count(*) FROM {table}")
        assert not reader.damaged
        assert not reader.losses()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_that_recorded_is_in_them(name: str) -> None:
    environment = RunFile.read(RECORDED / name).environment()
    assert (environment["host"], environment["device_ids"]) == ("sample", [])
    texts = [path.read_text("utf-8") for path in RECORDED.glob(f"{name}/**/*.json")]
    with RunReader(RECORDED / name) as reader:
        for table in TABLES:
            texts += [str(row) for row in reader.rows(f"SELECT * FROM {table}")]
    words = " ".join(texts)
    assert not [place for place in ("/home", "/root", "/tmp", "/work", "/usr") if place in words]
    hidden = [path.name for path in (RECORDED / name).rglob("*") if path.name.startswith(".")]
    assert hidden == []


def test_they_are_small() -> None:
    files = [path for path in RECORDED.rglob("*") if path.is_file()]
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < LARGEST


@pytest.mark.parametrize("name", ["clean", "bad_batch"])
def test_where_no_bit_was_changed_nothing_is_accused(name: str, copied: Copied) -> None:
    run = copied(name)
    found = bisect("run", run, "--json").json
    assert (found["first_corrupt"], found["last_clean"]) == (None, truth(name)["steps"])
    scan = bisect("scan", run, "--json")
    assert scan.code == 0
    assert {row["status"] for row in scan.json["checkpoints"]} == {"clean"}
    assert bisect("report", run, "--json").json["headline"]["state"] == "clean"
    with RunReader(run) as reader:
        assert reader.rows("SELECT * FROM alerts WHERE severity = 'proven'") == []


def test_the_weights_bit_is_named(copied: Copied) -> None:
    known, run = truth("weight_flip"), copied("weight_flip")
    found = bisect("run", run, "--json").json
    assert (found["last_clean"], found["first_corrupt"]) == bracket(known)
    assert found["proven"]
    (injected,) = known["injected"]
    (element,) = injected["elements"]
    with RunReader(run) as reader:
        ((step, tensor, detail),) = reader.rows(
            "SELECT step, name, detail FROM alerts JOIN layer_names USING (layer)"
        )
    told = json.loads(detail)
    assert (step, tensor) == (known["step"], injected["tensor"])
    assert (told["index"], told["bits"]) == (element["index"], element["bits"])
    assert (int(told["before"], 16), int(told["after"], 16)) == (
        element["before"],
        element["after"],
    )
    report = bisect("report", run, "--json").json
    assert (report["headline"]["state"], report["go_back"]["step"]) == (
        "corrupt",
        bracket(known)[0],
    )


def test_its_replay_names_the_step_by_the_command_that_the_run_recorded(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, run = truth("weight_flip"), copied("weight_flip")
    python = Path(preloaded.python()).parent  # the command begins with `python`
    monkeypatch.setenv("PATH", f"{python}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)  # and is relative to this folder
    answer = bisect("verify", run, "--recorded", "--json")
    assert answer.code == 1, answer.out
    located = answer.json
    assert (located["first_corrupt"], located["class"]) == (known["step"], "state at rest")
    # the run's own host is not this one: that it did not happen again is not said
    assert located["verdict"] == "undetermined"
    (tensor,) = located["tensors"]
    (injected,) = known["injected"]
    (element,) = injected["elements"]
    assert (tensor["kind"], tensor["name"]) == ("param", injected["tensor"])
    assert (tensor["index"], tensor["bits"]) == (element["index"], element["bits"])


def test_two_ranks_that_differ_blame_nobody(copied: Copied) -> None:
    known, run = truth("gradient_flip"), copied("gradient_flip")
    (injected,) = known["injected"]
    (element,) = injected["elements"]
    low, high = bracket(known)
    with RunReader(run) as reader:
        ((step, tensor, detail),) = reader.rows(
            "SELECT step, name, detail FROM alerts JOIN layer_names USING (layer)"
            " WHERE severity = 'proven'"
        )
        verdicts = reader.rows("SELECT DISTINCT verdict FROM incidents")
    told = json.loads(detail)
    assert known["step"] <= step <= high
    assert (tensor, told["index"]) == (injected["tensor"], element["index"])
    assert (told["culprit"], told["ranks"]) == (None, [0, 1])
    assert verdicts == [("undetermined",)]
    answer = bisect("run", run, "--json")
    found = answer.json
    assert (answer.code, found["first_corrupt"], found["rank"]) == (3, None, None)
    after = found["proven_alert"]["after"]
    assert found["last_clean"] == low <= after < known["step"] <= found["proven_alert"]["step"]
    assert [row["step"] for row in found["suspect"]] == [high, known["steps"]]
    assert f"--from {low} --to {step}" in " ".join(found["evidence"])
    report = bisect("report", run, "--json").json
    assert (report["headline"]["state"], report["headline"]["rank"]) == ("corrupt", None)
    assert report["go_back"]["step"] == low
    assert f"verify {run} --recorded --from {low}" in report["go_back"]["then"][0][0]


def test_a_stored_bit_is_storage_and_its_file_and_tensor_are_named(copied: Copied) -> None:
    known, run = truth("storage_fault"), copied("storage_fault")
    (injected,) = known["injected"]
    found = bisect("run", run, "--json").json
    assert (found["last_clean"], found["first_corrupt"]) == bracket(known)
    assert (found["class"], found["damaged_files"]) == ("stored bytes", [known["step"]])
    assert found["state"]["verdict"] == "sound"
    (element,) = injected["elements"]
    named = f"(element {element['index']}, bits {element['bits']})"
    assert injected["tensor"] in found["evidence"][0]
    assert named in found["evidence"][0]
    assert found["evidence"][1] == f"its file: {run / known['file']}"
    scan = bisect("scan", run, "--json")
    damaged = [row for row in scan.json["checkpoints"] if row["status"] == "corrupt"]
    (row,) = damaged
    assert (scan.code, row["step"]) == (1, known["step"])
    assert known["file"].startswith(f"archive/{Path(row['path']).name}/")
    assert injected["tensor"] in row["reasons"][0]
    assert named in row["reasons"][0]
    report = bisect("report", run, "--json").json
    assert report["headline"]["limits"] == [
        "The fault is in the checkpoint's file, and not in the training."
    ]


def test_a_statistic_suspects_the_spike_and_convicts_nobody(copied: Copied) -> None:
    known, run = truth("loss_spike"), copied("loss_spike")
    with RunReader(run) as reader:
        rows = reader.rows("SELECT step, detector, severity FROM alerts ORDER BY step")
    assert rows[0] == (known["step"] + 1, "loss", "suspect")  # the first after the update
    assert {row[1:] for row in rows} == {("loss", "suspect")}
    answer = bisect("run", run, "--json")
    assert (answer.code, answer.json["first_corrupt"]) == (3, None)
    assert [row["step"] for row in answer.json["suspect"]] == [known["steps"]]
    report = bisect("report", run, "--json").json
    assert (report["headline"]["state"], report["headline"]["proven"]) == ("suspect", False)
    assert report["go_back"]["step"] == bracket(known)[0]


def test_the_batch_was_another_one_and_the_loss_shows_it(copied: Copied) -> None:
    known = truth("bad_batch")
    with RunReader(copied("bad_batch")) as reader:
        losses = dict(reader.rows("SELECT step, loss FROM steps"))
    later = [step for step in losses if step > known["steps"] // 2]
    assert max(later, key=lambda step: losses[step]) == known["step"]


def test_the_script_records_the_same_fault_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "sample_runs"))
    import record  # because it is a script, in no package

    monkeypatch.setattr(record, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(record, "ROOM", 0.0)
    monkeypatch.setattr(socket, "gethostname", socket.gethostname)  # put back what it replaces
    record.record(["weight_flip"], tmp_path)
    known = truth("weight_flip")
    again = json.loads((tmp_path / "weight_flip.truth.json").read_text("utf-8"))
    for told in (known, again):  # on another processor the weight has other last bits
        for element in told["injected"][0]["elements"]:
            del element["before"], element["after"]
    assert again == known
    with RunReader(tmp_path / "weight_flip") as reader:
        found = reader.rows(
            "SELECT step, name, severity FROM alerts JOIN layer_names USING (layer)"
        )
    assert found == [(known["step"], known["injected"][0]["tensor"], "proven")]
