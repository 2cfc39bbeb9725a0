"""Faults on one of several ranks: what each of them computes, reads and keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed_injections import FAULTY, STEPS
from distributed_launch import Outcome, launch

from sdc_guard.inject.fault import InjectionRecord
from sdc_guard.inject.journal import journal_of, read_events, read_journal

SCENARIOS = (
    "injected_nothing",
    "injected_gradient",
    "injected_reduced_gradient",
    "injected_collective",
    "injected_shards",
    "no_collective_without_replicas",
)
SIGN = 1 << 31
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios on two ranks."""
    return launch(tmp_path_factory.mktemp("injected"), 2, SCENARIOS)


def words(tensor: torch.Tensor) -> list[int]:
    return [word & 2 * SIGN - 1 for word in tensor.flatten().view(torch.int32).tolist()]


def differences(sound: Tensors, wrong: Tensors) -> dict[tuple[str, int], tuple[int, int]]:
    """(name, index) to the words before and after, of every word that differs."""
    assert sound.keys() == wrong.keys()
    return {
        (name, index): (old, new)
        for name in sound
        for index, (old, new) in enumerate(zip(words(sound[name]), words(wrong[name]), strict=True))
        if old != new
    }


def told(trained: Outcome, scenario: str) -> list[dict[str, Any]]:
    return [trained.told(scenario, rank) for rank in range(trained.world)]


def injected(found: list[dict[str, Any]]) -> InjectionRecord:
    """The one record of a scenario; rank 1 has it."""
    assert (found[0]["records"], found[0]["missed"]) == ([], [])
    (record,) = found[1]["records"]
    assert (record.rank, record.step, record.tensor) == (1, FAULTY, "second.weight")
    assert (record.touched[0].index, record.touched[0].bits) == (4, [26])
    return record


def test_before_the_reduction_all_ranks_get_the_same_wrong_gradient(trained: Outcome) -> None:
    sound, found = told(trained, "injected_nothing"), told(trained, "injected_gradient")
    injected(found)
    change = differences(sound[0]["computed"][FAULTY], found[0]["computed"][FAULTY])
    assert list(change) == [("second.weight", 4)]
    assert differences(found[0]["computed"][FAULTY], found[1]["computed"][FAULTY]) == {}
    assert found[0]["bits"] == found[1]["bits"]
    assert found[0]["differences"], "the fault changed nothing"


def test_after_the_reduction_one_rank_reads_one_wrong_element(trained: Outcome) -> None:
    sound, found = told(trained, "injected_nothing"), told(trained, "injected_reduced_gradient")
    (word,) = injected(found).touched
    assert differences(sound[1]["computed"][FAULTY], found[1]["computed"][FAULTY]) == {}
    change = differences(sound[1]["read"][FAULTY], found[1]["read"][FAULTY])
    assert change == {("second.weight", 4): (word.before, word.after)}
    assert differences(sound[0]["read"][FAULTY], found[0]["read"][FAULTY]) == {}
    replicas = differences(found[0]["weights"][FAULTY + 1], found[1]["weights"][FAULTY + 1])
    assert {name.removeprefix("exp_avg of ") for name, _ in replicas} <= {
        "second.weight", "exp_avg_sq of second.weight",
    }  # fmt: skip
    assert {index for _, index in replicas} == {4}


def test_a_collective_gives_one_rank_another_sum(trained: Outcome) -> None:
    sound, found = told(trained, "injected_nothing"), told(trained, "injected_collective")
    (word,) = injected(found).touched
    for rank in (0, 1):
        # reduced by a hook of the injector's, to the same bits
        before, computed = sound[rank]["computed"][0], found[rank]["computed"][0]
        assert differences(before, computed) == {}
    change = differences(sound[1]["computed"][FAULTY], found[1]["computed"][FAULTY])
    assert change == {("second.weight", 4): (word.before, word.after)}
    assert differences(sound[0]["computed"][FAULTY], found[0]["computed"][FAULTY]) == {}


def test_a_journal_for_each_rank(trained: Outcome) -> None:
    run = trained.run("injected_collective")
    assert journal_of(run, 0).name == "journal.jsonl"
    assert sorted(path.name for path in journal_of(run, 0).parent.iterdir()) == [
        "journal-00001.jsonl", "journal.jsonl",
    ]  # fmt: skip
    assert read_journal(run) == trained.told("injected_collective", 1)["records"]
    assert [line["rank"] for line in read_events(run) if line["event"] == "planned"] == [0, 1]


def test_elements_of_shards_are_those_of_the_whole_tensor(trained: Outcome) -> None:
    # on two ranks 5 rows are 3 and 2, 3 are 2 and 1, and 1 is 1 and none
    found = told(trained, "injected_shards")
    places = [
        {(r.fault, r.site, r.tensor, r.touched[0].index) for r in told["records"] if r.fault < 5}
        for told in found
    ]
    assert places == [
        {(1, "weight", "first.weight", 0)},
        {
            (0, "weight", "first.weight", 29),
            (2, "exp_avg", "second.weight", 10),
            (3, "reduced_gradient", "first.bias", 4),
            (4, "gradient", "second.weight", 14),
        },
    ]
    assert STEPS > FAULTY + 1


def test_a_drawn_element_of_shards_is_one_and_a_rank_gets_one_that_it_holds(
    trained: Outcome,
) -> None:
    found = told(trained, "injected_shards")
    drawn = [r for told in found for r in told["records"] if r.fault == 5]
    assert len(drawn) == 1
    (own,) = (r for told in found for r in told["records"] if r.fault == 6)
    assert own.rank == 1
    assert own.touched[0].index >= 3 * 6
    assert found[0]["missed"] == []
    (missed,) = found[1]["missed"]
    assert (missed.fault, missed.reason) == (7, "rank 1 holds no such element of last.weight")


def test_only_what_the_record_says_changes_in_a_shard(trained: Outcome) -> None:
    """The weights that the forward meets, beside those of the training without faults."""
    folder = trained.run("injected_shards")
    assert {record.rank for record in read_journal(folder)} == {0, 1}
    first = told(trained, "injected_shards")[1]
    weights = first["weights"][FAULTY]
    (record,) = (r for r in first["records"] if r.fault == 0)
    local = record.touched[0].index - 3 * 6
    assert words(weights["first.weight"])[local] == record.touched[0].after


def test_collectives_of_shards_are_refused_by_name(trained: Outcome) -> None:
    for found in told(trained, "no_collective_without_replicas"):
        assert "collective needs a model in DistributedDataParallel" in found["error"]
