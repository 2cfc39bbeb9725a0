"""Judges of archives without a trace: what they suspect, and that they leave healthy ones alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.oracles.consistency import ConsistencyOracle
from forensics.oracles.judgement import Judgement, Oracle
from forensics.oracles.statistics import StatisticsOracle
from sdc_guard import Guard, RunReader

SEED = 7  # the thresholds were calibrated on seeds from 1000 on
State = dict[str, Any]


def training(seed: int = SEED, count: int = 5, every: int = 10) -> list[State]:
    """The states of a small training with AdamW, as a script saves them."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(40, 16),
        torch.nn.Linear(16, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 40),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    states = []
    for step in range(1, count * every + 1):
        tokens = torch.randint(0, 40, (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        if step % every == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            states.append(copy.deepcopy({**content, "step": step}))
    return states


def saved(folder: Path, states: list[State]) -> list[Checkpoint]:
    for state in states:
        torch.save(state, folder / f"step-{state['step']}.pt")
    return index(folder)


def judged(oracle: Oracle, found: list[Checkpoint]) -> list[str]:
    return [oracle.judge(one).verdict for one in found]


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
def test_healthy_checkpoints_are_not_suspected(seed: int, tmp_path: Path) -> None:
    print("seed", seed)
    found = saved(tmp_path, training(seed))
    assert judged(StatisticsOracle(found), found) == ["clean"] * 5
    assert judged(ConsistencyOracle(found), found) == ["clean"] * 5


def _weight(state: State) -> torch.Tensor:
    return state["model"]["1.weight"]


def _nan(state: State) -> None:
    _weight(state)[3, 4] = torch.nan


def _infinite(state: State) -> None:
    _weight(state)[3, 4] = torch.inf


def _large(state: State) -> None:
    _weight(state)[3, 4] = 2e3


def _bit(place: int) -> Callable[[State], None]:
    """Flip a bit of a weight of 0.1 or so."""

    def change(state: State) -> None:
        _weight(state)[3, 4] = 0.1
        _weight(state).view(torch.int32)[3, 4] ^= 1 << place

    return change


def _tiny(state: State) -> None:
    _weight(state).mul_(1e-41)


def _block(state: State) -> None:
    _weight(state).view(-1)[100:400] = 0


def _row(state: State) -> None:
    _weight(state)[5] = 0.25


def _negative(state: State) -> None:
    state["optimizer"]["state"][1]["exp_avg_sq"][0, 0] = -1e-9


def _beyond(state: State) -> None:
    state["optimizer"]["state"][1]["exp_avg"][0, 0] = 10.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_nan, "model.1.weight: one element is NaN"),
        (_infinite, "model.1.weight: one element is infinite"),
        (_bit(30), "model.1.weight: as large as"),
        (_large, "model.1.weight: an element of 2e+03, where"),
        (_tiny, "model.1.weight: none of its 1,024 elements is larger than"),
        (_block, "model.1.weight: 300 zeros in a row"),
        (_row, "model.1.weight: 1 more of its 64 rows are one value throughout"),
        (_negative, "optimizer.state.1: 1 elements of exp_avg_sq below zero"),
        (_beyond, "optimizer.state.1: 1 elements beyond what any gradients can make them"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]),
)
def test_what_no_training_leaves_is_suspect(
    change: Callable[[State], None], says: str, tmp_path: Path
) -> None:
    states = training(count=3)
    change(states[1])
    found = saved(tmp_path, states)
    oracle = StatisticsOracle(found)
    assert not oracle.proves
    judgement = oracle.judge(found[1])
    assert judgement.verdict == "corrupt", judgement
    assert judgement.reason.startswith(says)
    assert oracle.judge(found[0]).verdict == oracle.judge(found[2]).verdict == "clean"


def test_a_small_flip_is_not_seen(tmp_path: Path) -> None:
    states = training(count=3)
    _bit(20)(states[1])
    found = saved(tmp_path, states)
    assert judged(StatisticsOracle(found), found) == ["clean"] * 3


def test_a_layer_that_stops_is_suspect(tmp_path: Path) -> None:
    states = training()
    for state in states[3:]:
        state["model"]["1.bias"] = states[2]["model"]["1.bias"]
    found = saved(tmp_path, states)
    oracle = StatisticsOracle(found)
    assert judged(oracle, found) == ["clean"] * 3 + ["corrupt"] * 2
    assert "model.1.bias: the bits of step 30, while most layers moved" in _of(oracle, found[3])


def _of(oracle: Oracle, one: Checkpoint) -> str:
    return oracle.judge(one).reason


def test_a_copy_in_16_bits_is_its_master_rounded(tmp_path: Path) -> None:
    states = []
    for step, state in enumerate(training(count=2), 1):
        halves = {name: tensor.bfloat16() for name, tensor in state["model"].items()}
        states.append({"model": halves, "master": state["model"], "step": step})
    states[1]["model"]["3.weight"].view(torch.int16)[2, 2] ^= 1 << 5
    found = saved(tmp_path, states)
    oracle = StatisticsOracle(found)
    assert judged(oracle, found) == ["clean", "corrupt"]
    assert _of(oracle, found[1]).startswith(
        "model.3.weight: 1 elements are not master.3.weight, rounded (element 130)"
    )


def test_stale_saves_are_suspect(tmp_path: Path) -> None:
    states = training()
    for state in states[2:4]:
        state["model"] = states[1]["model"]
    found = saved(tmp_path, states)
    oracle = ConsistencyOracle(found)
    assert judged(oracle, found) == ["clean", "clean", "corrupt", "corrupt", "clean"]
    assert _of(oracle, found[3]).startswith("all weights have the bits of step 20, 30:")


def test_frozen_moments_under_weights_that_move_are_suspect(tmp_path: Path) -> None:
    states = training()
    for key in states[3]["optimizer"]["state"]:
        for name in ("exp_avg", "exp_avg_sq"):
            kept = states[2]["optimizer"]["state"][key][name]
            states[3]["optimizer"]["state"][key][name] = kept
    found = saved(tmp_path, states)
    oracle = ConsistencyOracle(found)
    assert judged(oracle, found) == ["clean"] * 3 + ["corrupt", "clean"]
    expected = "the optimizer's moments have the bits of step 30, the weights moved"
    assert _of(oracle, found[3]) == expected


def test_an_optimizer_of_the_next_step_is_suspect(tmp_path: Path) -> None:
    states = training()
    for part in states[2]["optimizer"]["state"].values():
        part["step"] += 1
    found = saved(tmp_path, states)
    oracle = ConsistencyOracle(found)
    assert judged(oracle, found) == ["clean", "clean", "corrupt", "clean", "clean"]
    expected = "its optimizer counts 31 steps, by the checkpoints beside it 30"
    assert _of(oracle, found[2]) == expected


def test_another_checkpoint_under_a_new_name_is_suspect(tmp_path: Path) -> None:
    found = saved(tmp_path, training(count=3))
    copied = tmp_path / "step-40.pt"
    copied.write_bytes(found[1].path.read_bytes())
    found = index(tmp_path)
    oracle = ConsistencyOracle(found)
    told = {one.path.name: oracle.judge(one) for one in found}
    assert {name for name, one in told.items() if one.verdict == "corrupt"} == {"step-40.pt"}
    assert (
        told["step-40.pt"].reason
        == "its name says step 40 and it holds step 20, as step-20.pt does"
    )


@pytest.mark.parametrize("other", [3, 5])
def test_tensors_of_a_neighbouring_step_are_a_race(other: int, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states: dict[int, State] = {}
    with Guard(model, optimizer, run=tmp_path / "run", first_step=1, digest_budget=None):
        for step in range(1, 7):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            states[step] = copy.deepcopy(dict(model.state_dict()))
    states[4]["1.weight"] = states[other]["1.weight"]
    folder = tmp_path / "saved"
    folder.mkdir()
    found = saved(folder, [{"model": states[n], "step": n} for n in (2, 4, 6)])
    with RunReader(tmp_path / "run") as reader:
        oracle = ConsistencyOracle(found, reader)
        judgements: list[Judgement] = [oracle.judge(one) for one in found]
    assert [one.verdict for one in judgements] == ["clean", "corrupt", "clean"]
    assert judgements[1].reason == (
        f"1 of 4 tensors hold step {other}, and it says step 4 (model.1.weight first): "
        "saved while the training went on"
    )
