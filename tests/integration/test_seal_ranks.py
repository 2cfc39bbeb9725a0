"""Seals of what several ranks saved: the sums of all ranks' digests prove whole tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from click.testing import CliRunner
from distributed_launch import Outcome, launch
from distributed_shards import Uneven
from in_process import bisect

from forensics.index import index
from forensics.oracles.trace import TraceOracle
from forensics.readers import guard_archive
from forensics.readers.known import reader_of
from sdc_guard import RunReader
from sdc_guard.archive.sealing.seal_file import seal_at
from sdc_guard.cli import main
from sdc_guard.digest import digest_tensor
from sdc_guard.sealed_shards import Shards, _lacking, summed

SCENARIOS = ("seals_fsdp2", "seals_budgeted", "seals_ddp")
TENSORS = 3 * len(list(Uneven().parameters()))  # with the moments


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios, on two processes."""
    return launch(tmp_path_factory.mktemp("two"), 2, SCENARIOS)


def said(two: Outcome, scenario: str, name: str) -> Any:
    told = two.told(scenario, 0)
    assert told["health"] == "", two.output()
    assert two.told(scenario, 1)["health"] == "", two.output()
    return told["said"][name]


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("seals_fsdp2", "sharded"), ("seals_fsdp2", "beside"), ("seals_budgeted", "budgeted")],
)
def test_shards_add_up_to_what_was_saved(two: Outcome, scenario: str, name: str) -> None:
    status, reasons, kinds, count = said(two, scenario, name)
    assert (status, reasons) == ("clean", ())
    assert {"param", "exp_avg", "exp_avg_sq"} <= set(kinds)
    assert count >= TENSORS


def test_a_full_state_dict_and_replicas(two: Outcome) -> None:
    assert said(two, "seals_fsdp2", "whole.pt")[:3] == ("clean", (), ["param"])
    assert said(two, "seals_ddp", "replicas")[:2] == ("clean", ())


@pytest.mark.parametrize("name", ["boxes", "together"])
def test_safetensors_of_dcp_in_boxes_and_put_together(two: Outcome, name: str) -> None:
    status, reasons, kinds, count = said(two, "seals_fsdp2", name)
    assert (status, reasons, kinds) == ("clean", (), ["param"])
    assert count >= TENSORS // 3
    folder = two.run("seals_fsdp2") / "saved" / name
    found = bisect("scan", folder, "--json").json["checkpoints"]
    assert [(one["status"], one["step"]) for one in found] == [("clean", 1)]
    assert bisect("diff", folder, two.run("seals_fsdp2") / "saved" / "together").code == 0


def test_a_save_that_was_overtaken_is_named(two: Outcome) -> None:
    status, reasons, *_ = said(two, "seals_fsdp2", "overtaken")
    assert status == "suspect"
    assert reasons[0].startswith("holds step 2, not step 1: a save that was overtaken")


def test_a_bit_in_another_ranks_shard_is_named(two: Outcome) -> None:
    status, reasons, *_ = said(two, "seals_fsdp2", "altered")
    assert (status, reasons) == ("suspect", ("first.weight: bytes differ from what step 2 left",))


def test_a_rank_that_does_not_call_is_waited_for_and_named(two: Outcome) -> None:
    status, reasons, *_ = said(two, "seals_fsdp2", "alone")
    assert status == "untested"
    assert any("ranks 1 did not call guard.seal" in reason for reason in reasons)


def test_the_seal_is_read_and_its_digests_are_those_of_whole_tensors(two: Outcome) -> None:
    run = two.told("seals_fsdp2", 0)["run"]
    folder = two.run("seals_fsdp2") / "saved" / "sharded"
    seal = seal_at(folder)
    assert seal is not None
    (found,) = [one for one in index(run) if one.path == folder]
    assert (found.step, found.status) == (1, "clean")
    content = reader_of(found.format).open(found)
    for name, one in seal.digests.items():
        assert one.digest == digest_tensor(content.tensors[name].read())


def test_a_copy_of_weights_equals_the_sums_of_the_trace(two: Outcome) -> None:
    run = two.told("seals_fsdp2", 0)["run"]
    options = ["--count", "1", "--weights", "1", "--policy", "keep-last", "--apply"]
    done = CliRunner().invoke(main, ["keep", str(run), *options])
    assert "1 thinned to their weights" in done.output
    (found,) = [one for one in guard_archive.find(run) if not one.resumable]
    with RunReader(run) as reader:
        judged = TraceOracle(reader).judge(found)
    assert (found.step, judged.verdict) == (3, "clean")
    assert judged.reason.startswith("5 of 5 tensors equal the sums of the ranks' shards")


def test_sums_count_each_shard_once_and_say_what_lacks() -> None:
    generator = torch.Generator().manual_seed(4)
    tensor = torch.randn(6, 4, generator=generator)
    upper, lower = (digest_tensor(tensor[:4]), digest_tensor(tensor[4:], offset=16))
    rows = [(0, "param", "w", upper), (1, "param", "w", lower), (2, "param", "w", lower)]
    names = frozenset("w")
    assert summed(rows, names) == {("param", "w"): digest_tensor(tensor)}
    assert summed([*rows, (0, "param", "v", upper)], names).keys() == {("param", "w")}
    zeros = [digest_tensor(torch.zeros(3)), digest_tensor(torch.zeros(3), offset=3)]
    rows_of_zeros = [(rank, "param", "w", digest) for rank, digest in enumerate(zeros)]
    assert summed(rows_of_zeros, names) == {("param", "w"): digest_tensor(torch.zeros(6))}
    shards = Shards(names, 1, 1, (0, 1, 2, 3))
    assert _lacking(rows, {0: 1, 1: 2, 2: 1}, shards) == [
        "ranks 3 did not call guard.seal", "the trace has 1 of 2 digests of rank 1",
    ]  # fmt: skip
    assert _lacking(rows, {0: 1, 1: 1, 2: 1}, Shards(names, 1, 1, (0, 1, 2))) == []
