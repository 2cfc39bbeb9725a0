"""Where each rank ran, as its start was recorded, and as runs of before have it."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reported import finished, report_on
from traces import make_run, whole_steps, write

from forensics.accused import accused_rank
from forensics.reporting.as_json import content
from forensics.reporting.markdown import markdown
from forensics.reporting.page import page
from forensics.reporting.result_lines import lines
from forensics.result import Result
from sdc_guard import RunReader
from sdc_guard.signals.whereabouts import whereabouts
from sdc_guard.store.machines import Device, Machine, attempt_of, machines
from sdc_guard.store.run_file import Attempt, RunFile

H200 = {"name": "cuda:1 (NVIDIA H200)", "uuid": "GPU-6f2c", "serial": "1650"}


def start(step: int, host: Any, *devices: Any, attempt: int = 1) -> Any:
    kind = "start" if attempt == 1 else "restart"
    detail = json.dumps({"first_step": step, "host": host, "devices": list(devices)})
    return "events", {"attempt": attempt, "step": step, "kind": kind, "detail": detail}


def alert(
    step: int, detector: str = "carried_digest", severity: str = "proven", **more: Any
) -> Any:
    detail = json.dumps({"text": "said", **more})
    return "alerts", {
        "step": step, "layer": 2, "detector": detector, "score": 1.0, "threshold": 0.0,
        "severity": severity, "detail": detail,
    }  # fmt: skip


def two_ranks(folder: Path) -> Path:
    """Steps 0 to 9; a second start at step 5, where rank 1 moved to another host."""
    run = make_run(folder, Attempt(1, 0, 0.0), Attempt(2, 5, 9.0))
    replace(RunFile.read(run), world_size=2).write(run)
    for rank in range(2):
        rows = [start(0, f"node-{rank}", H200), *whole_steps(0, 6)]
        rows += [start(5, f"spare-{rank}", H200, attempt=2), *whole_steps(5, 9, attempt=2)]
        write(run, rows, rank=rank)
    return run


def test_the_attempt_that_counts_for_a_step_says_where(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "run")
    with RunReader(run) as reader, RunReader(run, attempt=1) as first:
        asked = [(reader, 4), (reader, 5), (reader, None), (first, 6), (first, None)]
        found = [machines(of, step)[1].host for of, step in asked]
        assert found == ["node-1", "spare-1", "spare-1", "node-1", "node-1"]
        assert [attempt_of(of, step) for of, step in asked] == [1, 2, 2, 1, 1]
        assert attempt_of(reader, -1) is None
        assert machines(reader, 4)[1].text == (
            "host node-1, cuda:1 (NVIDIA H200), GPU-6f2c, serial 1650"
        )


def test_a_run_of_before_has_the_host_of_rank_0_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Attempt(1, 0, 0.0, {"host": "node-0"}))
    write(run, [("events", {"step": 0, "kind": "start", "detail": '{"first_step": 0}'})])
    write(run, [("events", {"step": 0, "kind": "start", "detail": "{}"})], rank=1)
    with RunReader(run) as reader:
        assert machines(reader) == {0: Machine(0, 1, "node-0")}


@pytest.mark.parametrize(
    "detail",
    ["", "no json", "[]", "3", '{"host": 7}', '{"host": null, "devices": 5}', "[" * 100_000,
     '{"devices": ["cuda", {"name": 3}, {"uuid": "x"}]}',
     '{"host": "not known: OSError: no name", "devices": "not known: OSError: no"}', None],
)  # fmt: skip
def test_a_start_that_says_nothing_usable_is_passed_over(
    detail: str | None, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    write(run, [("events", {"step": 0, "kind": "start", "detail": detail})])
    with RunReader(run) as reader:
        assert machines(reader) == {}


def test_what_a_process_says_of_itself() -> None:
    told = whereabouts(torch.nn.Linear(2, 2))
    assert told["host"] == socket.gethostname()
    assert [device["name"].split()[0] for device in told["devices"]] == ["cpu"]
    assert whereabouts(torch.nn.Linear(2, 2, device="meta"))["devices"] == [{"name": "meta"}]
    assert whereabouts(torch.nn.Identity())["devices"] == []


def test_what_cannot_be_read_does_not_stop_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise OSError("no name here")

    monkeypatch.setattr(socket, "gethostname", refuse)
    assert whereabouts(torch.nn.Identity())["host"] == "not known: OSError: no name here"


@pytest.mark.parametrize(
    ("alerts", "proven", "rank"),
    [
        ({1: [alert(7)]}, True, 1),
        ({0: [alert(7)], 1: [alert(7)]}, True, None),
        ({0: [alert(7, "replica_digest", culprit=1)]}, True, 1),
        ({0: [alert(7, "replica_digest", culprit=None)]}, True, None),
        ({0: [alert(7, "replica_digest", culprit=1)], 1: [alert(7)]}, True, 1),
        ({0: [alert(7, "gradient_norm", "suspect")]}, False, None),
        ({0: [alert(7, "peer_norm", "suspect", rank=1)]}, False, 1),
        ({0: [alert(7, "peer_norm", "suspect", rank=None)]}, False, None),
        ({0: [alert(7, "shadow_batch")]}, True, None),
        ({0: [alert(6)]}, True, None),
    ],
)
def test_a_rank_is_accused_by_exact_comparisons_of_its_own_or_by_its_peers(
    alerts: dict[int, list[Any]], proven: bool, rank: int | None, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    replace(RunFile.read(run), world_size=2).write(run)
    for of, rows in alerts.items():
        write(run, rows, rank=of)
    with RunReader(run) as reader:
        assert accused_rank(reader, 7, proven=proven) == rank


def test_a_run_that_has_one_rank_now_had_two_before(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "run")
    replace(RunFile.read(run), world_size=1).write(run)
    write(run, [alert(3, "gradient_norm", "suspect")])
    with RunReader(run) as reader:
        assert accused_rank(reader, 3, proven=False) is None  # every rank's gradient is odd
    write(run, [alert(3)], rank=1)
    headline = report_on(run).headline
    assert headline.machine is not None
    assert (headline.rank, headline.machine.host) == (1, "node-1")


def test_a_report_names_the_machine_of_the_rank_that_alerts_accuse(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "run")
    write(run, [alert(7)], rank=1)  # of attempt 1, which counts to step 4 only
    assert report_on(run).headline.machine is None
    write(run, [("alerts", {**alert(7)[1], "attempt": 2})], rank=1)
    report = report_on(run)
    where = "host spare-1, cuda:1 (NVIDIA H200), GPU-6f2c, serial 1650"
    assert report.headline.rank == 1
    assert report.headline.machine == Machine(1, 2, "spare-1", (Device(*H200.values()),))
    assert content(report)["headline"]["machine"] == {
        "rank": 1, "attempt": 2, "host": "spare-1", "devices": [H200],
    }  # fmt: skip
    told = markdown(report)
    assert f"Rank 1 ran on {where}. The rank recorded that at its start" in told
    assert f"<dt>It ran on</dt><dd>{where}</dd>" in page(report)


def test_a_session_names_the_machine_of_its_rank_and_no_other(tmp_path: Path) -> None:
    run = two_ranks(tmp_path / "run")
    facts = {"exact": True, "proven": True, "verdict": "intermittent"}
    finished(run, Result("verify", 3, 4, **facts, rank=1).as_dict())
    machine = report_on(run).headline.machine
    assert machine is not None
    assert (machine.rank, machine.host) == (1, "node-1")
    finished(run, Result("verify", 3, 4, **facts).as_dict())
    assert report_on(run).headline.machine is None


def test_a_result_tells_its_machine_in_a_line_and_hostile_ones_do_no_harm() -> None:
    machine = Machine(1, 2, "node-1", (Device(*H200.values()),)).as_dict()
    told = Result("verify", 3, 4, exact=True, proven=True, rank=1, machine=machine).as_dict()
    assert told["machine"]["host"] == "node-1"
    assert (
        "- rank 1 ran on host node-1, cuda:1 (NVIDIA H200), GPU-6f2c, serial 1650, as it recorded "
        "when attempt 2 began"
    ) in lines(told)
    for odd in ("x", {"devices": [3]}, {"host": "\x1b[2J", "devices": [{"name": "\x07"}]}):
        assert "\x1b" not in "".join(lines({**told, "machine": odd}))
    assert "machine" not in Result("verify", 3, 4, exact=True, proven=True).as_dict()
