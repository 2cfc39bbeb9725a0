"""The guard in set-ups of several processes, against values computed beside it in float64."""

from __future__ import annotations

import json
from typing import Any

import pytest
from distributed_launch import Outcome, launch
from distributed_reading import recorded
from setups_told import expected, near, same, sound

from sdc_guard import RunReader
from sdc_guard.store.run_file import RunFile

DDP = (
    "ddp_default",
    "ddp_bucket_view",
    "ddp_static_graph",
    "ddp_find_unused",
    "ddp_inner_module",
    "ddp_no_sync",
    "ddp_compiled",
)
FSDP2 = ("fsdp2_uneven", "fsdp2_accumulation", "fsdp2_compiled")
FSDP1 = ("fsdp1_flat", "fsdp1_named")
SCALED = ("ddp_scaler_overflow_on_one_rank", "fsdp2_scaler_overflow_on_one_rank")
FAULTS = ("ddp_nan_on_one_rank", "bit_flipped_in_a_shard")
MESHES = ("tensor_parallel", "sequence_parallel", "pipeline", "pipeline_after_the_guard")
FOUR = ("hsdp", "fsdp2_on_tensor_parallel", "ddp_in_pairs")
NET = {"first.weight", "first.bias", "second.weight", "second.bias"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios of two processes."""
    scenarios = (*DDP, *FSDP2, *FSDP1, *SCALED, *MESHES, *FAULTS)
    return launch(tmp_path_factory.mktemp("two"), 2, scenarios)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios of four processes."""
    return launch(tmp_path_factory.mktemp("four"), 4, FOUR)


@pytest.mark.parametrize("scenario", DDP)
def test_setups_ddp_records_each_ranks_own_and_the_reduced_gradients(
    two: Outcome, scenario: str
) -> None:
    found = recorded(two.run(scenario))
    sound(two, scenario)
    for rank in range(2):
        told = two.told(scenario, rank)
        same(found.of_rank(rank, "local"), expected(told, "own"))
        same(found.of_rank(rank, "reduced"), expected(told, "mean"))
        same(found.of_rank(rank, "reduced"), expected(told, "present"))
    # a layer that no rank uses is absent, and wrappers are not in the names
    assert found.copies("local") == {name: {1} for name in NET}
    assert found.copies("reduced") == {name: {2} for name in NET}
    parts = 2 if scenario == "ddp_no_sync" else 1
    assert found.steps == {(r, s): (parts, False, None) for r in range(2) for s in range(3)}
    assert found.alerts == []
    kinds = {kind for _, _, kind, _ in found.events}
    assert kinds - {"replicas equal"} == {"start", "end"}


def test_setups_ddp_tells_the_rank_that_made_a_nan_from_those_that_received_it(
    two: Outcome,
) -> None:
    scenario = "ddp_nan_on_one_rank"
    sound(two, scenario)
    found = recorded(two.run(scenario))
    nonfinite = {key: row.measures[3] for key, row in found.layers.items() if key[2] == 2}
    assert {key[:2] for key, count in nonfinite.items() if count} == {
        (1, "local"),
        (0, "reduced"),
        (1, "reduced"),
    }
    assert {key[3] for key, count in nonfinite.items() if count} == NET
    assert {(rank, step) for rank, step, _, _ in found.alerts} == {(1, 2)}
    assert {name for _, _, kind, name in found.alerts if kind == "nonfinite_gradient"} == NET


@pytest.mark.parametrize("scenario", SCALED)
def test_setups_a_step_that_all_scalers_skip_is_one_step_on_every_rank(
    two: Outcome, scenario: str
) -> None:
    sound(two, scenario)
    found = recorded(two.run(scenario))
    scales = {0: 1024.0, 1: 1024.0, 2: 512.0, 3: 512.0}
    assert found.steps == {
        (rank, step): (1, step == 1, scale) for rank in range(2) for step, scale in scales.items()
    }
    of_one_rank, of_all = ("local", "reduced") if scenario[:3] == "ddp" else ("", "sharded")
    for rank in range(2):
        told = two.told(scenario, rank)
        same(finite(found.of_rank(rank, of_all)), finite(expected(told, "present")))
        if of_one_rank:
            same(finite(found.of_rank(rank, of_one_rank)), finite(expected(told, "own")))
    # the scale's own work is no alert; the script's infinite loss is
    assert found.alerts == [(1, 1, "nonfinite_loss", None)]


def finite(gradients: dict[Any, list[float]]) -> dict[Any, list[float]]:
    return {key: measures for key, measures in gradients.items() if not measures[3]}


@pytest.mark.parametrize("scenario", FSDP2)
def test_setups_fsdp2_records_shards_that_add_up_to_the_gradient(
    two: Outcome, scenario: str
) -> None:
    sound(two, scenario)
    found = recorded(two.run(scenario))
    for rank in range(2):
        same(found.of_rank(rank, "sharded"), expected(two.told(scenario, rank), "present"))
    told = two.told(scenario, 0)
    mean = expected(told, "mean")
    assert found.combined("sharded") == near(told["whole"])
    assert found.combined("sharded") == near({key: values[0] for key, values in mean.items()})
    assert found.copies("sharded") == {name: {1} for name in NET | {"last.weight"}}
    # one row on two ranks: the second rank's shard is empty, and that is no vanished gradient
    empty = {step: v for (step, name), v in found.of_rank(1, "sharded").items() if name[0] == "l"}
    assert empty == {step: [0.0, 0.0, 0.0, 0.0, 0.0] for step in range(3)}
    assert found.alerts == []
    parts = 2 if scenario == "fsdp2_accumulation" else 1
    assert {accumulation for accumulation, _, _ in found.steps.values()} == {parts}


def test_setups_fsdp2_digests_of_shards_add_up_to_the_digest_of_the_tensor(two: Outcome) -> None:
    told = two.told("fsdp2_uneven", 0)
    assert len(told["digests"]) == 3 * 4 * len(NET | {"last.weight"})  # gradients too
    assert recorded(two.run("fsdp2_uneven")).sum_of_digests(range(2)) == told["digests"]


def test_setups_ddp_digests_of_gradients_are_those_of_the_reduced_ones(two: Outcome) -> None:
    found = recorded(two.run("ddp_default")).digests
    told = two.told("ddp_default", 0)["digests"]
    assert len(told) == 3 * len(NET)
    for rank in range(2):
        assert told == two.told("ddp_default", rank)["digests"]
        mine = {tuple(key): tuple(x) for (of, *key), x in found.items() if of == rank}
        assert {key: value for key, value in mine.items() if key[1] == "grad"} == told


def test_setups_fsdp2_a_bit_that_flips_in_a_shard_is_told_by_its_rank(two: Outcome) -> None:
    found = recorded(two.run("bit_flipped_in_a_shard"))
    assert [alert for alert in found.alerts if alert[1] == 1] == [
        (1, 1, "carried_digest", "first.weight")
    ]
    with RunReader(two.run("bit_flipped_in_a_shard")) as reader:
        ((detail,),) = reader.rows(
            "SELECT detail FROM alerts WHERE step = 1 AND detector = 'carried_digest'"
        )
    # element 3 of the rank's rows, the first of which is row 3 of the whole matrix of 5 x 6
    assert {key: json.loads(detail)[key] for key in ("index", "bits")} == {
        "index": 3 * 6 + 3,
        "bits": [20],
    }


def test_setups_hsdp_counts_replicas_of_a_shard_once(four: Outcome) -> None:
    scenario = "hsdp"
    sound(four, scenario)
    found = recorded(four.run(scenario))
    told = four.told(scenario, 0)
    for rank in range(4):
        same(found.of_rank(rank, "sharded"), expected(four.told(scenario, rank), "present"))
    assert found.copies("sharded") == {name: {2} for name in NET | {"last.weight"}}
    assert found.combined("sharded") == near(told["whole"])
    assert found.combined("sharded") == near(norms(expected(told, "mean")))
    for replica in (range(2), range(2, 4)):
        assert found.sum_of_digests(replica) == told["digests"]
    assert found.alerts == []


def norms(gradients: dict[Any, list[float]]) -> dict[Any, float]:
    return {key: measures[0] for key, measures in gradients.items()}


def test_setups_tensor_parallel_counts_what_every_rank_holds_once(two: Outcome) -> None:
    scenario = "tensor_parallel"
    sound(two, scenario)
    found = recorded(two.run(scenario))
    distributed = ("sharded", "replicated")
    for rank in range(2):
        told = two.told(scenario, rank)
        recorded_here = {
            key: measures
            for scope in (*distributed, "local")
            for key, measures in found.of_rank(rank, scope).items()
        }
        same(recorded_here, expected(told, "present"))
        # the plan leaves the norm alone: each rank has its own, and all are the same
        plain = found.of_rank(rank, "local")
        assert {name for _, name in plain} == {"norm.weight", "norm.bias"}
        mean = expected(told, "mean")
        assert norms(plain) | found.combined(*distributed) == near(norms(mean))
    split = ("up.weight", "up.bias", "down.weight")
    assert found.copies("sharded") == {name: {1} for name in split}
    assert found.copies("replicated") == {"down.bias": {2}}
    assert found.alerts == []


@pytest.mark.parametrize("scenario", ["tensor_parallel", "fsdp2_on_tensor_parallel"])
def test_setups_tensor_parallel_digests_of_shards_add_up_to_the_digest_of_the_tensor(
    two: Outcome, four: Outcome, scenario: str
) -> None:
    outcome = two if scenario == "tensor_parallel" else four
    found = recorded(outcome.run(scenario))
    told = outcome.told(scenario, 0)["digests"]
    split = {"up.weight", "up.bias", "down.weight"}
    everywhere = found.sum_of_digests(range(outcome.world))
    one_copy = found.sum_of_digests(range(0, outcome.world, 2))  # of the first tensor rank
    assert told == {
        key: (everywhere if key[2] in split else one_copy).get(key, "missing") for key in told
    }
    assert "not carried" not in {kind for _, _, kind, _ in found.events}


def test_setups_sequence_parallel_says_that_terms_of_a_sum_are_terms(two: Outcome) -> None:
    scenario = "sequence_parallel"
    sound(two, scenario)
    found = recorded(two.run(scenario))
    for rank in range(2):
        told = two.told(scenario, rank)
        terms = found.of_rank(rank, "partial")
        assert {name for _, name in terms} == {"norm.weight", "norm.bias"}
        present = expected(told, "present")
        same(terms, {key: measures for key, measures in present.items() if key in terms})
    mean = norms(expected(two.told(scenario, 0), "mean"))
    others = {key: value for key, value in mean.items() if key[1][:4] != "norm"}
    assert found.combined("sharded", "replicated") == near(others)


def test_setups_fsdp2_on_tensor_parallel_counts_copies_on_both_meshes(four: Outcome) -> None:
    scenario = "fsdp2_on_tensor_parallel"
    sound(four, scenario)
    found = recorded(four.run(scenario))
    for rank in range(4):
        same(found.of_rank(rank, "sharded"), expected(four.told(scenario, rank), "present"))
    # tensor parallelism splits the matrices, and fully_shard alone the rest
    assert found.copies("sharded") == {
        "up.weight": {1}, "up.bias": {1}, "down.weight": {1},
        "down.bias": {2}, "norm.weight": {2}, "norm.bias": {2},
    }  # fmt: skip
    mean = expected(four.told(scenario, 0), "mean")
    assert found.combined("sharded") == near(norms(mean))


def test_setups_ddp_of_a_group_has_as_many_copies_as_the_group_has_ranks(four: Outcome) -> None:
    scenario = "ddp_in_pairs"
    sound(four, scenario)
    found = recorded(four.run(scenario))
    for rank in range(4):
        told = four.told(scenario, rank)
        same(found.of_rank(rank, "local"), expected(told, "own"))
        same(found.of_rank(rank, "reduced"), expected(told, "mean"))
    assert set().union(*found.copies("reduced").values()) == {2}


@pytest.mark.parametrize("scenario", FSDP1)
def test_setups_fsdp1_is_told_and_read_at_the_step(two: Outcome, scenario: str) -> None:
    sound(two, scenario)
    found = recorded(two.run(scenario))
    for rank in range(2):
        told = [line for of, _, kind, line in found.events if (of, kind) == (rank, "capture")]
        assert len(told) == 1
        assert "FSDP1" in told[0]
        assert two.printed(rank).count(told[0]) == len(FSDP1)  # logged once by each guard
        same(found.of_rank(rank, "sharded"), expected(two.told(scenario, rank), "present"))
    mean = expected(two.told(scenario, 0), "mean")
    for step in range(3):
        total = sum(v**2 for (of, _), v in norms(mean).items() if of == step)
        parts = sum(v**2 for (of, _), v in found.combined("sharded").items() if of == step)
        assert parts == near(total)
    names = {"_flat_param"} if scenario == "fsdp1_flat" else NET | {"last.weight"}
    assert {name for _, name in found.combined("sharded")} == names
    run = RunFile.read(two.run(scenario))
    assert sum(layer.numel for layer in run.layers) == 6 * 5 + 5 + 5 * 3 + 3 + 3
    assert found.alerts == []


def test_setups_pipeline_is_told_and_read_after_the_schedule_has_rescaled(two: Outcome) -> None:
    scenario = "pipeline"
    sound(two, scenario)
    found = recorded(two.run(scenario))
    names = {layer.name for layer in RunFile.read(two.run(scenario)).layers}
    assert names == {f"stage{stage}.0.{kind}" for stage in range(2) for kind in ("weight", "bias")}
    for rank in range(2):
        told = two.told(scenario, rank)
        own = found.of_rank(rank, "local")
        renamed = {(step, name[len("stage0.") :]): v for (step, name), v in own.items()}
        same(renamed, expected(told, "present"))
        assert {name[: len("stage0")] for _, name in own} == {f"stage{rank}"}
        of_the_whole = {(step, name[len("stage") :]): v for (step, name), v in own.items()}
        mean = expected(told, "mean")
        assert norms(of_the_whole) == near({key: mean[key][0] for key in of_the_whole})
        (line,) = [text for of, _, kind, text in found.events if (of, kind) == (rank, "capture")]
        assert "microbatches" in line
        assert line in two.printed(rank)
    assert {accumulation for accumulation, _, _ in found.steps.values()} == {4}


def test_setups_pipeline_of_a_stage_made_after_the_guard_is_seen_as_well(two: Outcome) -> None:
    scenario = "pipeline_after_the_guard"
    sound(two, scenario)
    found = recorded(two.run(scenario))
    for rank in range(2):
        same(found.of_rank(rank, "local"), expected(two.told(scenario, rank), "present"))
    assert (
        sum("microbatches" in line for _, _, kind, line in found.events if kind == "capture") == 2
    )
