"""No answer says clean over an alert that is proven: a range, from where ranks were still equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported import finished, report_on
from traces import make_run, whole_steps, write

from forensics.checkpoint import Checkpoint
from forensics.proven_alerts import (
    ProvenAlert,
    first_proven_alert,
    of_replay,
    start_before,
    with_proven_alert,
)
from forensics.reporting.facts import Headline
from forensics.reporting.going_back import go_back
from forensics.result import STORED_BYTES, Result
from forensics.two_findings import State
from forensics.wording import sentence
from sdc_guard import RunReader

TEXT = "undetermined: rank 0 and rank 1 differ in param of w, which is right is not known"


def alert(
    step: int, detector: str = "replica_digest", severity: str = "proven", **more: Any
) -> Any:
    detail = json.dumps({"text": TEXT, "ranks": [0, 1], "odd": []} | more)
    row = {"step": step, "detector": detector, "severity": severity, "detail": detail}
    return "alerts", row


def equal(*steps: int) -> list[Any]:
    row = {"kind": "replicas equal", "detail": "on all 2 ranks"}
    return [("events", {"step": step} | row) for step in steps]


def recorded(folder: Path, *rows: Any) -> Path:
    run = make_run(folder / "run")
    write(run, [*whole_steps(0, 40), *rows])
    return run


def kept(*steps: int) -> list[Checkpoint]:
    return [Checkpoint(step, Path(f"/a/{step}"), "torch", "clean") for step in steps]


def searched(clean: int | None, corrupt: int | None = None, **more: Any) -> Result:
    probes = [] if clean is None else [{"step": clean, "verdict": "clean", "oracle": "trace"}]
    return Result("run", clean, corrupt, True, True, probes=tuple(probes), **more)


def answered(run: Path, result: Result, *steps: int) -> Result:
    with RunReader(run) as reader:
        return with_proven_alert(reader, result, kept(*steps))


def test_the_range_begins_where_ranks_were_found_equal_last(tmp_path: Path) -> None:
    run = recorded(tmp_path, *equal(10, 20, 40), alert(30))
    found = answered(run, searched(35), 15, 25, 35)
    assert (found.exit_code, found.last_clean, found.first_corrupt) == (3, 15, None)
    assert (found.exact, found.proven_alert is not None) == (False, True)
    told = found.as_dict()
    assert (told["proven_alert"]["after"], told["proven_alert"]["step"]) == (20, 30)
    assert told["proven_alert"]["ranks"] == [0, 1]
    assert sentence(told).startswith(
        "Ranks differ, proven: equal at step 20, different at step 30, so they went apart in (20,"
    )
    assert "Nothing corrupt" not in sentence(told)
    assert TEXT in found.evidence[0]
    assert "--from 15 --to 30" in found.evidence[1]


def test_without_a_record_of_equality_no_checkpoint_is_called_clean(tmp_path: Path) -> None:
    found = answered(recorded(tmp_path, alert(30)), searched(35), 15, 25, 35)
    assert (found.exit_code, found.last_clean) == (3, None)
    said = sentence(found.as_dict())
    assert "the last one at which they were equal is not recorded" in said
    assert "--from 25 --to 30" in found.evidence[1]
    assert "begin at an earlier checkpoint" in found.evidence[1]


@pytest.mark.parametrize(
    "row",
    [
        alert(30, severity="suspect"),
        alert(30, "known_answer"),
        alert(30, **{"class": "input"}),
        alert(30, "carried_digest"),  # a search judges it by the digests
    ],
)
def test_what_is_no_proof_about_a_step_changes_no_answer(row: Any, tmp_path: Path) -> None:
    before = searched(35)
    assert answered(recorded(tmp_path, row), before, 15, 35) == before


def test_an_audit_proves_its_own_step(tmp_path: Path) -> None:
    found = answered(recorded(tmp_path, alert(30, "step_audit")), searched(35), 15, 29, 35)
    assert (found.exit_code, found.last_clean) == (3, 29)
    assert sentence(found.as_dict()).startswith("Proven by another comparison than this: step 30")


def test_a_corrupt_checkpoint_before_the_alert_stays_the_answer(tmp_path: Path) -> None:
    run = recorded(tmp_path, *equal(20), alert(30))
    before = searched(15, 25)
    assert answered(run, before, 15, 25, 35) == before
    later = answered(run, searched(35, 38), 15, 25, 35, 38)
    assert (later.last_clean, later.first_corrupt, later.exit_code) == (15, 38, 3)


def test_beside_a_damaged_file_the_training_is_not_called_sound(tmp_path: Path) -> None:
    run = recorded(tmp_path, *equal(20), alert(30))
    state = State("sound", 35, proven=True)
    result = searched(5, 15, kind=STORED_BYTES, damaged_files=(15,), state=state)
    found = answered(run, result, 5, 15, 20, 25, 35)
    assert (found.first_corrupt, found.exit_code) == (15, 1)
    assert found.state is not None
    assert (found.state.verdict, found.state.last_clean, found.state.first_corrupt) == (
        "corrupt", 20, 35,
    )  # fmt: skip
    assert "not affected" not in sentence(found.as_dict())


def test_a_replay_that_has_it_too_is_not_clean(tmp_path: Path) -> None:
    run = recorded(tmp_path, *equal(20), alert(30))
    same = Result("verify", 30, None, True, False)
    with RunReader(run) as reader:
        found = of_replay(reader, same, 15, 30)
        assert of_replay(reader, same, 30, 35) == same
        assert of_replay(reader, same, 5, 29) == same
    assert found.exit_code == 3
    assert "replay on other devices" in found.evidence[0]
    assert sentence(found.as_dict()).endswith("A replay up to step 30 has it, too.")


@given(
    steps=st.lists(st.integers(1, 90), unique=True),
    fault=st.integers(1, 90),
    every=st.integers(1, 30),
)
def test_the_range_holds_the_fault(steps: list[int], fault: int, every: int) -> None:
    """A fault in step `fault` is seen by the first comparison at or after it."""
    shown = -(-fault // every) * every
    before = shown - every or None
    found = ProvenAlert(shown, "replica_digest", before, ranks=(0, 1))
    start = start_before(found, kept(*sorted(steps)))
    if before is not None:
        assert start is None or start.step < fault <= shown


def test_the_report_goes_back_to_where_ranks_were_equal(tmp_path: Path) -> None:
    run = recorded(tmp_path, *equal(10, 20), alert(30))
    with RunReader(run) as reader:
        apart = first_proven_alert(reader)
    headline = report_on(run).headline
    assert (headline.state, headline.apart) == ("corrupt", apart)
    assert "ranks differ that were equal at step 20" in headline.sentence
    back = go_back(headline, kept(15, 25, 35), "/r", None, 40)
    assert back.step == 15
    assert "up to step 20, at which ranks were still equal" in back.why
    alone = Headline("corrupt", "", first_corrupt=30, source="alerts")
    assert go_back(alone, kept(15, 25, 35), "/r", None, 40).step == 25


def test_report_and_search_say_the_same(tmp_path: Path) -> None:
    run = recorded(tmp_path, alert(30))
    finished(run, answered(run, searched(35), 15, 25, 35).as_dict())
    headline = report_on(run).headline
    assert (headline.state, headline.proven, headline.first_corrupt) == ("corrupt", True, 30)
    assert "is not recorded" in headline.sentence
