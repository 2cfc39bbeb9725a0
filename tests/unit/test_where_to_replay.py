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
    assert "sdc-bisect verify --from 20 --to 40 runs them again" in replay
    assert earlier.startswith("ranks are compared every so many steps")
    _, replay, _ = advice(checkpoint(10), checkpoint(20, readable=False), *found[1:])
    assert "--from 10 --to 40" in replay


def test_a_statistic_that_suspects_is_replayed_from_the_checkpoint_before() -> None:
    reason = "incident open since step 34: step 34: norm in w: far off"
    _, replay = advice(checkpoint(20), checkpoint(30), checkpoint(40, reason))
    assert "--from 30 --to 40" in replay
    _, replay = advice(checkpoint(20), checkpoint(30), checkpoint(40, "its tensors are not finite"))
    assert "--from 30 --to 40" in replay
    _, replay = advice(checkpoint(40, reason))
    assert "verify from a checkpoint before" in replay


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
    assert limit.startswith("Session 0001 found nothing corrupt; what a step computed wrong")


def test_the_replay_begins_where_one_would_go_back_to() -> None:
    alone = Headline("corrupt", "", first_corrupt=30, source="alerts")
    found = [checkpoint(20), checkpoint(30), checkpoint(40, "suspect")]
    asked = go_back(alone, found, "/r", None, 40)
    assert asked.then == (("sdc-bisect run /r", "Find the first corrupt checkpoint"),)
    searched = Headline("corrupt", "", first_corrupt=30, source="alerts", searched="session 0001")
    ((command, _),) = go_back(searched, found, "/r", "python t.py --resume {ckpt}", 40).then
    assert command == "sdc-bisect verify /r --from 20 --recorded"
    assert "session 0001 found nothing corrupt" in go_back(searched, found, "/r", None, 40).why
    assert "nobody has searched" in asked.why


def test_another_batch_is_not_told_as_a_corrupted_tensor(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, whole_steps(0, 40))
    located = verified()
    finished(run, {**located, "class": "batch", "verdict": "data or software"})
    sentence = report_on(run).headline.sentence
    assert sentence.startswith(
        "Corrupt, proven: step 27 was trained on rank 0 on another batch than its replay; "
        "verdict: data or software"
    )
