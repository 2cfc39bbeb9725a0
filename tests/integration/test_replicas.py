"""Replicas compared with each other, on real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from distributed_disagreement import AT, EVERY, HIGH
from distributed_launch import Outcome, launch

from sdc_guard import RunReader

SHOWN = AT + 1  # the first record after the fault
THREE = (
    "replicas_sound",
    "weight_flipped",
    "moment_flipped",
    "weight_drifted",
    "input_changed",
    "ddp_bypassed",
    "experts",
    "own_statistics",
    "pair_of_replicas",
    "one_without_a_guard",
    "one_killed",  # the last one
)
FOUR = ("hsdp_flipped", "nothing_replicated", "tensor_parallel_flipped")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios of three processes."""
    return launch(tmp_path_factory.mktemp("three"), 3, THREE)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios of four processes."""
    return launch(tmp_path_factory.mktemp("four"), 4, FOUR)


def alerts(run: Path) -> list[dict[str, Any]]:
    """What the check alerted of: rank, step, layer's name, severity and the detail's items."""
    with RunReader(run) as reader:
        rows = reader.rows(
            "SELECT rank, step, name, severity, detail FROM alerts"
            " LEFT JOIN layer_names USING (layer) WHERE detector = 'replica_digest' ORDER BY ALL"
        )
    return [
        {"rank": rank, "step": step, "name": name, "severity": severity, **json.loads(detail)}
        for rank, step, name, severity, detail in rows
    ]


def events(run: Path) -> list[tuple[int, int, str]]:
    with RunReader(run) as reader:
        return reader.rows(
            "SELECT rank, step, detail FROM events WHERE kind = 'replicas' ORDER BY ALL"
        )


def equal_at(run: Path) -> list[int]:
    """Steps of the comparisons in which ranks were equal, as rank 0 recorded them."""
    with RunReader(run) as reader:
        query = "SELECT rank, step FROM events WHERE kind = 'replicas equal' ORDER BY ALL"
        rows = reader.rows(query)
    assert {rank for rank, _ in rows} <= {0}
    return [step for _, step in rows]


def the_alert(outcome: Outcome, scenario: str, **expected: Any) -> dict[str, Any]:
    """The one alert of a scenario, on the one rank that tells of it."""
    for rank in range(outcome.world):
        assert outcome.told(scenario, rank)["health"] == (0, ""), rank
    found = alerts(outcome.run(scenario))
    assert len(found) == 1, found
    assert {key: found[0].get(key) for key in expected} == expected
    return found[0]


def test_sound_replicas_raise_nothing_and_train_to_the_same_bits(three: Outcome) -> None:
    scenario = "replicas_sound"
    told = [three.told(scenario, rank) for rank in range(3)]
    assert [one["differences"] for one in told] == [[]] * 3
    assert [one["health"] for one in told] == [(0, "")] * 3
    assert alerts(three.run(scenario)) == []
    assert events(three.run(scenario)) == []
    steps = equal_at(three.run(scenario))
    assert len(steps) > 1
    assert sorted(set(steps)) == steps
    assert all(step % EVERY == 0 for step in steps[1:])


def test_that_ranks_were_equal_is_recorded_up_to_the_fault_and_not_after_it(three: Outcome) -> None:
    assert max(equal_at(three.run("weight_flipped"))) == SHOWN - EVERY
    assert equal_at(three.run("ddp_bypassed")) == []


def test_three_replicas_name_the_rank_the_tensor_and_the_element(three: Outcome) -> None:
    found = the_alert(
        three, "weight_flipped", rank=2, step=SHOWN, name="first.weight", severity="proven",
        culprit=2, ranks=[0, 1, 2], odd=[2], kind="param", count=1, differing=1, index=3,
        verdict="undetermined", **{"class": "corruption"},
    )  # fmt: skip
    # the values are those of a later step: the flipped bit is among those that differ
    assert HIGH in found["bits"]
    assert int(found["before"], 16) ^ int(found["after"], 16) == sum(1 << b for b in found["bits"])
    (event,) = events(three.run("weight_flipped"))
    assert event == (0, SHOWN, found["text"])


def test_a_moment_is_told_with_what_it_has_spoiled(three: Outcome) -> None:
    the_alert(
        three, "moment_flipped", rank=0, step=SHOWN, culprit=0, severity="proven", index=2,
        tensors=["param of second.weight", "exp_avg of second.weight"], **{"class": "corruption"},
    )  # fmt: skip
    assert events(three.run("moment_flipped")) == []  # rank 0 has the alert itself


def test_tiny_differences_are_drift_and_accuse_no_hardware(three: Outcome) -> None:
    found = the_alert(
        three, "weight_drifted", rank=2, step=SHOWN, severity="suspect", culprit=None, odd=[2],
        differing=15, of=30, verdict="data or software", **{"class": "drift"},
    )  # fmt: skip
    assert "numerical drift" in found["text"]


def test_an_input_that_changed_is_told_before_the_model_is_suspected(three: Outcome) -> None:
    found = the_alert(three, "input_changed", rank=2, step=SHOWN, name=None, culprit=2)
    assert found["text"].startswith("input differs on rank 2")


def test_replicas_that_were_never_in_sync_are_software(three: Outcome) -> None:
    found = the_alert(
        three, "ddp_bypassed", rank=0, step=0, severity="suspect", culprit=None, count=12,
        verdict="data or software", **{"class": "never in sync"},
    )  # fmt: skip
    assert found["text"].startswith("replicas were never in sync since the first record: ")


def test_layers_that_nothing_declares_to_be_replicas_are_a_note(three: Outcome) -> None:
    assert alerts(three.run("experts")) == []
    ((rank, step, text),) = events(three.run("experts"))
    assert (rank, step) == (0, 0)
    assert "taken for each rank's own" in text


def test_statistics_of_a_ranks_own_batches_are_left_out(three: Outcome) -> None:
    assert alerts(three.run("own_statistics")) == []
    assert events(three.run("own_statistics")) == []


def test_two_replicas_detect_and_do_not_blame(three: Outcome) -> None:
    found = the_alert(
        three, "pair_of_replicas", rank=0, step=SHOWN, name="first.weight", severity="proven",
        culprit=None, ranks=[0, 1], odd=[], index=3, verdict="undetermined",
    )  # fmt: skip
    assert found["text"].startswith(
        "undetermined: rank 0 and rank 1 differ in param of first.weight, which is right is not "
        "known"
    )
    assert sorted(found["values"]) == ["0", "1"]
    assert "before" not in found


def test_a_rank_without_a_guard_is_one_event_and_the_others_are_compared(three: Outcome) -> None:
    scenario = "one_without_a_guard"
    assert [three.told(scenario, rank)["differences"] for rank in range(3)] == [[]] * 3
    assert alerts(three.run(scenario)) == []
    assert events(three.run(scenario)) == [
        (0, 0, "nothing to compare with came in time from rank 2")
    ]


def test_a_rank_that_is_killed_is_one_event_and_the_others_go_on(three: Outcome) -> None:
    scenario = "one_killed"
    assert three.codes[2] == -9
    for rank in range(2):
        assert three.told(scenario, rank)["differences"] == []
        assert three.told(scenario, rank)["health"] == (0, "")
    assert alerts(three.run(scenario)) == []
    # what it had taken may not have been on its way yet
    ((rank, step, text),) = events(three.run(scenario))
    assert (rank, text) == (0, "nothing to compare with came in time from rank 2")
    assert step <= AT + AT % EVERY


def test_hybrid_shards_are_compared_with_those_of_their_replica(four: Outcome) -> None:
    # element 3 of the second shard of 5 rows of 6, the first has 3 rows
    the_alert(
        four, "hsdp_flipped", rank=1, step=SHOWN, name="first.weight", culprit=None, ranks=[1, 3],
        count=1, differing=1, index=3 * 6 + 3, severity="proven", **{"class": "corruption"},
    )  # fmt: skip


def test_where_nothing_is_replicated_one_event_says_so(four: Outcome) -> None:
    assert alerts(four.run("nothing_replicated")) == []
    assert events(four.run("nothing_replicated")) == [
        (0, 0, "nothing is held by more than one rank: there are no replicas to compare")
    ]


def test_what_tensor_parallelism_leaves_alone_is_compared_once_it_was_alike(four: Outcome) -> None:
    found = the_alert(
        four, "tensor_parallel_flipped", rank=2, step=SHOWN, culprit=2, ranks=[0, 1, 2, 3],
        severity="proven",
    )  # fmt: skip
    # its activations, and so its updates, are wrong in all that the ranks hold alike
    assert {"param of norm.weight", "param of down.bias"} <= set(found["tensors"])
    assert not {name for name in found["tensors"] if "up." in name}
