"""From which checkpoint an answer says that steps are to be run again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from reported import finished, report_on
from test_report_facts import verified
from traces import make_run, whole_steps, write

from forensics.checkpoint import Checkpoint
from forensics.reporting.facts import Headline
from forensics.reporting.going_back import go_back
from forensics.reporting.headline import with_unread_bytes
from forensics.reporting.result_lines import lines
from forensics.reservations import of_suspects
from forensics.result import Result

EXACT: Any = SimpleNamespace(proves=True)  # a judge; nothing else of it is asked


def checkpoint(step: int, reason: str = "", readable: bool = True) -> Checkpoint:
    status = "suspect" if reason else "clean"
    reasons = (reason,) if reason else ()
    return Checkpoint(step, Path(f"/a/{step}"), "torch", status, reasons, readable=readable)


def advice(*found: Checkpoint) -> list[str]:
    suspect = [one for one in found if one.status == "suspect"]
    return of_suspects(found, suspect, None, EXACT)


def test_a_checkpoint_of_the_step_of_an_incident_is_too_late_to_begin_at() -> None:
    replicas = "incident open since step 30: step 30: replica_digest in w: they differ"
    found = [checkpoint(20), checkpoint(30), checkpoint(40, replicas)]
    _, replay, earlier = advice(*found)
    assert "a replay from step 20 to step 40 runs them again" in replay
    assert earlier.startswith("ranks are compared every so many steps")
    _, replay, _ = advice(checkpoint(10), checkpoint(20, readable=False), *found[1:])
    assert "from step 10 to step 40" in replay


def test_a_statistic_that_suspects_is_replayed_from_the_checkpoint_before() -> None:
    reason = "incident open since step 34: step 34: norm in w: far off"
    _, replay = advice(checkpoint(20), checkpoint(30), checkpoint(40, reason))
    assert "from step 30 to step 40" in replay
    _, replay = advice(checkpoint(20), checkpoint(30), checkpoint(40, "its tensors are not finite"))
    assert "from step 30 to step 40" in replay
    _, replay = advice(checkpoint(40, reason))
    assert "a replay from a checkpoint before" in replay


def test_after_a_search_that_found_nothing_a_proven_alert_asks_for_a_replay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    detail = json.dumps({"text": "they differ"})
    alert = {"step": 7, "detector": "replica_digest", "severity": "proven", "detail": detail}
    write(run, [*whole_steps(0, 9), ("alerts", alert)])
    folder = run / "archive" / "step=000005"
    folder.mkdir(parents=True)
    torch.save({"step": 5, "w": torch.ones(3)}, folder / "state.pt")
    before = report_on(run)
    assert "Not searched" in before.headline.limits[0]
    assert before.go_back.then[0][0] == f"sdc-bisect run {run}"
    finished(run, Result("run", 9, None, exact=True, proven=True).as_dict())
    after = report_on(run)
    assert after.headline.state == "corrupt"
    (limit,) = after.headline.limits
    assert limit.startswith("Session 0001 found no corrupt checkpoint; what a step computed wrong")


def test_the_replay_begins_where_one_would_go_back_to() -> None:
    alone = Headline("corrupt", "", first_corrupt=30, source="alerts")
    found = [checkpoint(20), checkpoint(30), checkpoint(40, "suspect")]
    asked = go_back(alone, found, "/r", None, 40)
    assert asked.then == (("sdc-bisect run /r", "Find the first corrupt checkpoint"),)
    searched = Headline("corrupt", "", first_corrupt=30, source="alerts", searched="session 0001")
    ((command, _),) = go_back(searched, found, "/r", "python t.py --resume {ckpt}", 40).then
    assert command == "sdc-bisect verify /r --recorded --from 20"
    assert "session 0001 found no corrupt one" in go_back(searched, found, "/r", None, 40).why
    assert "nobody has searched" in asked.why


def test_another_batch_is_not_told_as_a_corrupted_tensor(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 40))
    located = verified()
    finished(run, {**located, "class": "batch", "verdict": "data or software"})
    report = report_on(run)
    told = lines(report.results[-1])
    assert told[-1] == "- what the step left differs with its batch: 1 tensor"
    sentence = report.headline.sentence
    assert sentence.startswith(
        "Corrupt, proven: step 27 was trained on rank 0 on another batch than its replay; "
        "verdict: data or software"
    )


def test_what_a_step_computed_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 40))
    finished(run, verified(**{"class": "optimizer update"}))
    assert report_on(run).headline.sentence.startswith(
        "Corrupt, proven: step 27 is the first corrupted step on rank 0: its update, or a gradient "
        "after the backward, is not that of the replay; it shows in element 0 of param layer.2"
    )
    finished(run, verified(**{"class": "gradient"}))
    assert ": its backward pass computed other gradients" in report_on(run).headline.sentence


def test_files_that_nobody_read_since_the_save_are_told_with_what_reads_them(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 40))
    for step in (10, 20):
        torch.save({"step": step, "w": torch.ones(3)}, run / f"step-{step}.pt")
    before = report_on(run)
    assert before.headline.state == "clean"
    assert before.headline.limits[-1].startswith("The bytes of 2 checkpoints were not read since")
    assert "another question" in before.go_back.why
    assert f"sdc-bisect scan {run}" in [command for command, _ in before.go_back.then]
    probes = [{"step": 10, "verdict": "clean", "oracle": "trace", "reason": ""}]
    probes.append({"step": 20, "verdict": "clean", "oracle": "statistics", "reason": ""})
    found = Result("run", 20, None, exact=True, proven=True, probes=tuple(probes)).as_dict()
    finished(run, found)
    (limit,) = [one for one in report_on(run).headline.limits if "since the save" in one]
    assert limit.startswith("The bytes of 1 checkpoint were")
    accused = Headline("corrupt", "")
    assert with_unread_bytes(accused, [checkpoint(10)], []) == accused
