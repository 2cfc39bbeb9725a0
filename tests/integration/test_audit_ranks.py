"""Audited steps on several ranks: who is named, and who is not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from distributed_audits import FROM, STEPS
from distributed_launch import Outcome, launch

from sdc_guard.ledger import read_ledger

AUDITED = range(1, STEPS)  # the first step is looked at, and not audited


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("two")
    scenarios = ["audited", "other_parameters", "one_faulty_rank", "audited_on_rank_0_only"]
    return launch(folder, 2, [*scenarios, "a_forward_that_communicates", "audited_shards"])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return launch(tmp_path_factory.mktemp("three"), 3, ["one_faulty_rank"])


def verdicts(told: Any) -> Counter[str]:
    return Counter(detail["verdict"] for _, _, detail in told["audits"])


def ledger(outcome: Outcome, scenario: str) -> Path:
    return outcome.folder / f"{scenario}.ledger"


@pytest.mark.parametrize("rank", [0, 1])
def test_local_gradients_repeat_here_and_at_the_neighbour(two: Outcome, rank: int) -> None:
    told = two.told("audited", rank)
    assert told["differences"] == []
    assert verdicts(told) == {"sound": len(AUDITED)}
    assert all(len(detail["elsewhere"]) == 1 for _, _, detail in told["audits"])
    assert told["alerts"] == []
    assert told["health"].errors == 0
    left = list((two.run("audited") / "audit").rglob("*.*"))
    assert left == []


def test_a_neighbour_with_other_parameters_is_not_asked_what_it_cannot_tell(two: Outcome) -> None:
    told = two.told("other_parameters", 0)
    assert told["differences"] == []
    assert verdicts(told) == {"sound": len(AUDITED), "not comparable": 1}
    (reason,) = [d["reason"] for _, _, d in told["audits"] if d["verdict"] == "not comparable"]
    assert re.fullmatch(
        r"not run on rank 1 \(.*\): it holds other parameters than this rank", reason
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_detect_and_do_not_blame(two: Outcome, rank: int) -> None:
    told = two.told("one_faulty_rank", rank)
    assert told["differences"] == []
    steps = [step for step, severity, _ in told["alerts"] if severity == "proven"]
    assert steps == list(range(FROM, STEPS))
    for _, _, detail in told["alerts"]:
        assert detail["verdict"] == "persistent on a device"
        assert detail["device"] is None
    entries, damaged = read_ledger(ledger(two, "one_faulty_rank"))
    assert damaged == 0
    assert {entry.kind for entry in entries} == {"audits"}


def test_of_three_ranks_two_name_the_third(three: Outcome) -> None:
    faulty = three.told("one_faulty_rank", 1)
    assert [step for step, _, _ in faulty["alerts"]] == list(range(FROM, STEPS))
    assert {d["verdict"] for _, _, d in faulty["alerts"]} == {"persistent on a device"}
    assert all(detail["device"] for _, _, detail in faulty["alerts"])
    for rank in (0, 2):
        told = three.told("one_faulty_rank", rank)
        assert told["alerts"] == []
        assert verdicts(told)["sound"] == len(AUDITED)
        assert "rank 1" in told["audits"][-1][2]["reason"]
    entries, _ = read_ledger(ledger(three, "one_faulty_rank"))
    assert [entry.kind for entry in entries].count("strike") == STEPS - FROM


def test_a_neighbour_without_a_guard_costs_one_wait(two: Outcome) -> None:
    told = two.told("audited_on_rank_0_only", 0)
    assert told["differences"] == []
    assert verdicts(told) == {"sound": len(AUDITED), "not comparable": 1}
    reasons = [d["reason"] for _, _, d in told["audits"] if d["verdict"] == "not comparable"]
    assert "rank 1 did not answer in time" in reasons[0]


@pytest.mark.parametrize("scenario", ["a_forward_that_communicates", "audited_shards"])
def test_a_forward_that_talks_to_other_ranks_is_not_run_again(two: Outcome, scenario: str) -> None:
    told = two.told(scenario, 0)
    assert told["differences"] == []
    ((step, _, detail),) = told["audits"]
    assert (step, detail["verdict"]) == (0, "not comparable")
    assert "talks to" in detail["reason"]
    assert told["health"].errors == 0
