"""Two ranks with DistributedDataParallel: the rank is named, and replays go through torchrun."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import preloaded
import pytest
from conftest import bisect

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bisect_campaign as campaign
from bisect_training import Plan

from sdc_guard.inject.fault import Fault

SCRIPT = Path(campaign.__file__).with_name("bisect_training.py")
PLAN = Plan(seed=5)
AT_REST = Fault("weight", 15, "middle.weight", 9, 21, rank=1)


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "run"
    campaign.on_ranks(folder, replace(PLAN, faults=(AT_REST,)))
    return folder


def test_a_batch_that_differs_on_one_rank_is_the_input_and_not_the_model(tmp_path: Path) -> None:
    campaign.on_ranks(tmp_path / "run", replace(PLAN, wrong_batch=(1, 15)))
    found = campaign.verified(tmp_path / "run", campaign.OnRanks(PLAN), 12)
    assert (found.first_corrupt, found.exact, found.rank) == (15, True, 1)
    assert (found.kind, found.verdict) == ("batch", "data or software")
    text = "the batch of rank 1 was another one, the other's was equal: the input differs"
    assert any(line.startswith(text) for line in found.evidence)


def test_a_bit_of_one_replica_names_rank_element_and_bit(at_rest: Path) -> None:
    found = campaign.answered(at_rest, campaign.OnRanks(PLAN))
    assert (found.first_corrupt, found.exact, found.rank) == (15, True, 1)
    (tensor,) = found.tensors
    assert tensor.change is not None
    assert (tensor.name, tensor.change.index, tensor.change.bits) == ("middle.weight", 9, [21])


def test_torchrun_is_a_resume_command(at_rest: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    words = [SCRIPT, "{run}", "--resume", "{ckpt}", "--until", "{step}", "--seed", 5]
    answer = bisect("verify", at_rest, "--json", "--", preloaded.python(), *launch, *words)
    assert answer.code == 1, answer.err
    assert (answer.json["first_corrupt"], answer.json["rank"]) == (15, 1)
    machine = answer.json["machine"]
    assert (machine["rank"], machine["host"]) == (1, socket.gethostname())
    (tensor,) = answer.json["tensors"]
    assert (tensor["name"], tensor["index"], tensor["bits"]) == ("middle.weight", 9, [21])
