"""The guards of several processes where ranks differ: one fails, halts, dies, or has no guard."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import preloaded
import pytest
from distributed_launch import PATIENCE, ROOT, Outcome, launch
from distributed_reading import recorded
from setups_told import expected, near, same, sound

from sdc_guard import RunReader
from sdc_guard.archive.manifest import Manifest
from sdc_guard.store.machines import machines
from sdc_guard.store.run_file import RunFile

TROUBLES = (
    "guard_on_rank_0_only",
    "broken_hook_on_rank_1",
    "ddp_checkpoint_by_rank_0",
    "fsdp2_checkpoint",
    "resumed",
    "two_hosts",
    "skipped_together",
    "halted_together",
    "damaged_run_file",
    "unequal_policies",
    "no_guard_on_rank_0",
    "death_of_rank_1",  # the last one
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios, on two processes."""
    return launch(tmp_path_factory.mktemp("two"), 2, TROUBLES)


def test_setups_a_guard_on_rank_0_alone_records_rank_0_alone(two: Outcome) -> None:
    scenario = "guard_on_rank_0_only"
    assert [two.told(scenario, rank)["differences"] for rank in range(2)] == [[], []]
    found = recorded(two.run(scenario))
    same(found.of_rank(0, "local"), expected(two.told(scenario, 0), "own"))
    same(found.of_rank(0, "reduced"), expected(two.told(scenario, 0), "mean"))
    assert {rank for rank, _ in found.steps} == {0}


def test_setups_trouble_in_one_ranks_hooks_stays_there(two: Outcome) -> None:
    scenario = "broken_hook_on_rank_1"
    assert [two.told(scenario, rank)["differences"] for rank in range(2)] == [[], []]
    assert two.told(scenario, 0)["health"] == (0, "")
    errors, last = two.told(scenario, 1)["health"]
    assert errors > 0
    assert "MemoryError: out of memory" in last
    found = recorded(two.run(scenario))
    same(found.of_rank(0, "reduced"), expected(two.told(scenario, 0), "mean"))
    assert {key: found.steps[key][0] for key in found.steps} == {
        (rank, step): 1 for rank in range(2) for step in range(3)
    }


def test_setups_ddp_a_checkpoint_by_one_rank_is_clean(two: Outcome) -> None:
    scenario = "ddp_checkpoint_by_rank_0"
    sound(two, scenario)
    folder = two.told(scenario, 0)["last"]
    assert Manifest.read(folder).status == "clean"
    assert list(folder.parent.glob("step=*")) == [folder]


def test_setups_fsdp2_a_checkpoint_of_shards_is_one_of_all_ranks(two: Outcome) -> None:
    scenario = "fsdp2_checkpoint"
    sound(two, scenario)
    (folder,) = {two.told(scenario, rank)["last"] for rank in range(2)}
    manifest = Manifest.read(folder)
    assert (manifest.status, manifest.reasons, manifest.world_size) == ("clean", (), 2)


def test_setups_all_ranks_agree_on_the_number_of_a_start(two: Outcome) -> None:
    run = two.run("resumed")
    assert [(a.attempt, a.first_step) for a in RunFile.read(run).attempts] == [(1, 0), (2, 3)]
    found = recorded(run)
    assert sorted(found.steps) == [(rank, step) for rank in range(2) for step in range(5)]
    for rank in range(2):
        events = [(step, kind) for of, step, kind, _ in found.events if of == rank]
        starts = [(step, kind) for step, kind in events if kind != "replicas equal"]
        assert starts == [(0, "start"), (3, "restart"), (5, "end")]


def test_setups_each_rank_records_its_own_host_at_each_start(two: Outcome) -> None:
    with RunReader(two.run("two_hosts")) as reader:
        known = {step: machines(reader, step) for step in (2, 3, None)}
    with RunReader(two.run("two_hosts"), attempt=1) as reader:
        before = machines(reader)
    hosts = {step: {rank: one.host for rank, one in known[step].items()} for step in known}
    first, second = {0: "node-0", 1: "node-1"}, {0: "node-0", 1: "spare-1"}
    assert hosts == {2: first, 3: second, None: second}
    assert before == known[2]
    assert {one.device for one in before.values()} == {f"cpu {platform.machine()}"}


def test_setups_a_step_is_skipped_on_all_ranks_or_on_none(two: Outcome) -> None:
    scenario = "skipped_together"
    mine, other = (two.told(scenario, rank) for rank in range(2))
    assert mine["bits"] == other["bits"]
    assert mine["health"] == other["health"] == (0, "")
    found = recorded(two.run(scenario))
    assert {key for key, (_, skipped, _) in found.steps.items() if skipped} == {(0, 1), (1, 1)}
    assert [event for event in found.events if event[2] == "skip"] == [
        (0, 1, "skip", "rank 1 has an alert")
    ]
    assert sorted(found.steps) == [(rank, step) for rank in range(2) for step in range(3)]
    # the step after it has finite gradients: nothing of the skipped one was applied
    after = [row.measures for key, row in found.layers.items() if key[2] == 2]
    assert after
    assert all(measures[3] == 0 for measures in after)


def test_setups_all_ranks_halt_at_the_same_step(two: Outcome) -> None:
    said = [two.told("halted_together", rank)["said"] for rank in range(2)]
    assert said[0].startswith("rank 1 has an alert")
    assert said[1].startswith("step 1: nonfinite_")
    assert sorted(recorded(two.run("halted_together")).steps) == [
        (rank, step) for rank in range(2) for step in range(2)
    ]


def test_setups_what_rank_0_cannot_start_no_rank_waits_for(two: Outcome) -> None:
    told = [two.told("damaged_run_file", rank) for rank in range(2)]
    assert [one["kind"] for one in told] == ["RunFormatError", "UsageError"]
    assert told[0]["said"].startswith("run.json cannot be read")
    assert told[1]["said"].startswith("rank 0 could not start the run: run.json cannot be read")


def test_setups_policies_that_differ_are_refused(two: Outcome) -> None:
    told = [two.told("unequal_policies", rank)["said"] for rank in range(2)]
    assert told[0].startswith("the ranks have different policies: halt, warn")
    assert told[1] == "nothing"


def test_setups_a_rank_that_waits_for_rank_0_in_vain_says_so(two: Outcome) -> None:
    said = two.told("no_guard_on_rank_0", 1)["said"]
    assert said.startswith("rank 1 waited in vain for rank 0 to start the run")
    assert said.endswith("(make the Guard on rank 0 too, with the same folder)")


def test_setups_the_death_of_a_rank_leaves_the_others_evidence(two: Outcome) -> None:
    told = two.told("death_of_rank_1", 0)
    assert told["said"] != "nothing"
    assert two.codes[1] == 9
    found = recorded(two.run("death_of_rank_1"))
    assert (0, 0) in found.steps


SCRIPT = """
import torch
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Guard(model, optimizer, run="run", digest_budget=None) as guard:
    for step in range(2):
        batch = torch.full((3, 4), 1.0 + torch.distributed.get_rank())
        loss = model(batch).sum()
        loss.backward()
        guard.observe(loss, batch)
        optimizer.step()
        optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


def test_setups_torchrun_each_rank_writes_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [preloaded.python(), *launcher, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    tables = [path for path in (run / "trace").iterdir() if not path.name.startswith(".")]
    assert {"steps", "layers", "digests", "events"} <= {path.name for path in tables}
    for table in tables:
        assert sorted(path.name for path in table.iterdir()) == ["rank=00000", "rank=00001"]
    content = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert content["world_size"] == 2
    assert [layer["name"] for layer in content["layers"]] == ["weight", "bias"]
    assert [attempt["attempt"] for attempt in content["attempts"]] == [1]
    # each element of the weight gathers three rows of the batch, twice that on rank 1
    found = recorded(run)
    for rank in range(2):
        own, both = 3.0 * (1 + rank), 3.0 * 1.5
        assert found.of_rank(rank, "local")[1, "weight"][:3] == near([own * 8**0.5, own, own])
        assert found.of_rank(rank, "reduced")[1, "weight"][:3] == near([both * 8**0.5, both, both])
