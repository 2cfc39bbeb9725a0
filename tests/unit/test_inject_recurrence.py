"""When a fault is due: once, by chance, always; and after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault
from sdc_guard.inject.injector import Injector
from sdc_guard.inject.journal import JOURNAL, read_events, read_journal
from sdc_guard.inject.recurrence import due, over


def steps_of(fault: Fault, key: str = "k", seed: int = 1, rank: int = 0) -> list[int]:
    return [step for step in range(4000) if due(fault, step, rank, seed, key)]


def test_once_always_and_until() -> None:
    assert steps_of(Fault("weight", 7)) == [7]
    assert steps_of(Fault("weight", 7, recurrence="persistent", until=9)) == [7, 8, 9]
    assert steps_of(Fault("weight", 3990, recurrence="persistent")) == [*range(3990, 4000)]
    assert steps_of(Fault("weight", 7, rank=1)) == []
    assert steps_of(Fault("weight", 7, rank=1), rank=1) == [7]
    assert [over(Fault("weight", 7), step) for step in (7, 8)] == [False, True]
    assert [over(Fault("weight", 7, recurrence="persistent", until=9), s) for s in (9, 10)] == [
        False, True,
    ]  # fmt: skip
    assert not over(Fault("weight", 7, recurrence="persistent"), 10**9)


def test_by_chance_as_often_as_asked_and_each_on_its_own() -> None:
    fault = Fault("gradient", 0, recurrence="intermittent", probability=0.1)
    found = [steps_of(fault, "a"), steps_of(fault, "b"), steps_of(fault, "a", seed=2)]
    found.append(steps_of(fault, "a", rank=1))
    # binomial: 400 ± 4 standard deviations of 19
    assert all(324 < len(steps) < 476 for steps in found)
    assert len({tuple(steps) for steps in found}) == 4
    assert found[0] == steps_of(fault, "a")
    certain = Fault("gradient", 0, recurrence="intermittent", probability=1.0)
    assert len(steps_of(certain)) == 4000


class Training:
    """Ten steps, of which a process runs some."""

    def __init__(self, run: Path, first: int, *faults: Fault, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.injector = Injector(
            self.model, self.optimizer, seed=1, run=run, first_step=first, **options
        )
        for fault in faults:
            self.injector.add(fault)

    def run(self, count: int) -> list[int]:
        """Run some steps; those at which something fired."""
        for _ in range(count):
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.injector.close()
        return [record.step for record in self.injector.records]


def test_a_defect_is_there_after_a_restart_and_an_event_is_over(tmp_path: Path) -> None:
    once = Fault("weight", 3)
    defect = Fault("weight", 2, "bias", change="stuck_at_1", recurrence="persistent", until=5)
    chance = Fault("weight", 0, "weight", recurrence="intermittent", probability=0.4)
    drawn = Training(tmp_path / "chance", 0, chance).run(8)
    assert 0 < len(drawn) < 8
    assert Training(tmp_path, 0, once, defect).run(6) == [2, 3, 3, 4, 5]
    again = Training(tmp_path, 2, once, defect)
    assert again.run(6) == [2, 3, 4, 5]
    (missed,) = again.injector.missed
    assert (missed.fault, missed.reason) == (0, "the journal says that it fired before")
    assert Training(tmp_path, 2, once, defect, again=True).run(6) == [2, 3, 3, 4, 5]
    assert Training(tmp_path / "chance", 0, chance).run(8) == []
    assert Training(tmp_path / "chance", 0, chance, again=True).run(8) == drawn


def test_what_recurs_hits_the_same_place_and_may_change_nothing(tmp_path: Path) -> None:
    stuck = Fault("weight", 1, bit=22, change="stuck_at_1", recurrence="persistent")
    training = Training(tmp_path, 0, stuck)
    training.run(6)
    records = training.injector.records
    assert len({(record.tensor, record.touched[0].index) for record in records}) == 1
    assert all(record.touched[0].after >> 22 & 1 for record in records)
    assert [record.masked for record in records] == [
        record.touched[0].before == record.touched[0].after for record in records
    ]
    assert any(record.masked for record in records[1:])


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault
from sdc_guard.inject.injector import Injector
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
injector = Injector(model, optimizer, seed=1, run=Path(sys.argv[1]), first_step=2)
injector.add(Fault("weight", 3)).add(Fault("gradient", 5))
for step in range(2, 8):
    model(torch.ones(2, 4)).sum().backward()
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
"""


def test_a_plan_of_one_fault_fires_once_although_its_process_was_killed(tmp_path: Path) -> None:
    """Killed at step 4, resumed at 2: the fault of step 3 is in the journal, and is not again."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    root = str(Path(__file__).resolve().parents[2])
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (record,) = read_journal(tmp_path)
    assert (record.step, record.site) == (3, "weight")
    # as if it had been killed while it wrote a line, too
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"event": "fired", "key": "x", "touched": [{"index": 1}')
    resumed = Training(tmp_path, 2, Fault("weight", 3), Fault("gradient", 5))
    assert resumed.run(6) == [5]
    assert [r.step for r in read_journal(tmp_path)] == [3, 5]
    planned = [line for line in read_events(tmp_path) if line["event"] == "planned"]
    assert [line["first_step"] for line in planned] == [2, 2, 2, 2]
    assert {line["seed"] for line in planned} == {1}
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    truth = [json.loads(line) for line in lines if '"fired"' in line]
    assert truth[0]["touched"][0] == {
        "index": record.touched[0].index,
        "before": record.touched[0].before,
        "after": record.touched[0].after,
    }


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path, no_space: Any) -> None:
    training = Training(tmp_path, 0, Fault("weight", 1), Fault("gradient", 2))
    size = (tmp_path / JOURNAL).stat().st_size
    with no_space(size + 10):
        assert training.run(4) == [1, 2]
    assert read_journal(tmp_path) == []


def test_a_fault_that_cannot_be_done_is_missed_once_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, 0, Fault("weight", 1, recurrence="persistent"))
    for name in ("weight", "bias"):  # they are no parameters any more
        value = getattr(training.model, name).detach().clone().requires_grad_()
        delattr(training.model, name)
        setattr(training.model, name, value)
    assert training.run(5) == []
    (missed,) = training.injector.missed
    assert (missed.step, missed.site) == (1, "weight")
    assert "is not there any more" in missed.reason
    assert sum("did not fire" in record.getMessage() for record in caplog.records) == 1
    assert [line["event"] for line in read_events(tmp_path)] == ["planned", "missed"]


def steps(training: Training, count: int) -> None:
    for _ in range(count):
        training.model(torch.ones(2, 4)).sum().backward()
        training.optimizer.step()


def test_what_is_added_too_late_or_for_a_rank_that_there_is_not_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    training = Training(tmp_path, 0, Fault("weight", 1, rank=9))
    steps(training, 3)
    training.injector.add(Fault("weight", 1, bit=3))
    training.injector.add(Fault("weight", 0, bit=4, recurrence="persistent", until=2))
    steps(training, 2)
    training.injector.close()
    with pytest.raises(InjectionError, match="the injector is closed"):
        training.injector.add(Fault("weight", 9))
    assert training.injector.records == []
    assert [(missed.fault, missed.reason) for missed in training.injector.missed] == [
        (0, "there is no rank 9: one process trains"),
        (1, "it was over before step 3, at which it was added"),
        (2, "it was over before step 3, at which it was added"),
    ]


def test_a_count_that_raises_does_not_end_the_training(tmp_path: Path) -> None:
    training = Training(tmp_path, 0, Fault("weight", 2, bit=3), count=lambda: 1 // 0)
    training.run(4)
    training.injector.close()
    assert [record.step for record in training.injector.records] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 1.5}, r"step 1\.5 .a whole number"),
        ({"step": "1"}, "step '1' .a whole"),
        ({"step": True}, "step True"),
        ({"bits": 3}, "bits 3 .a sequence"),
        ({"bits": (1.5,)}, "bits .1.5"),
        ({"index": 1.0}, "index 1.0"),
        ({"index": "a"}, "index 'a'"),
        ({"tensor": 5}, "tensor 5 .a name"),
        ({"rank": "0"}, "rank '0'"),
        ({"pattern": "lane", "width": 1.5}, "width 1.5"),
        ({"change": "set", "value": "a"}, "value 'a' .a number"),
        ({"change": "set", "value": 10**400}, "value 10{39}… .a number that a float can hold"),
        ({"change": "set", "value": 10**5000}, "value of too many digits"),
        ({"probability": "x"}, "probability 'x'"),
    ],
    ids=lambda x: str(x)[:40] if isinstance(x, str) else "",
)
def test_a_value_of_another_type_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    training = Training(tmp_path, 0)
    with pytest.raises(InjectionError, match=message):
        training.injector.add(Fault(**{"site": "weight", "step": 1} | options))
    training.injector.close()


def test_a_value_beyond_the_dtype_and_64_bits_becomes_what_torch_makes_of_it(
    tmp_path: Path,
) -> None:
    fault = Fault("weight", 0, "weight", 0, change="set", value=10**30)
    training = Training(tmp_path, 0, fault)
    training.model(torch.ones(2, 4))
    assert training.model.weight.flatten()[0] == 1e30
    training.injector.close()


@pytest.mark.parametrize(
    "line",
    [
        "[]", "3", "null", "[" * 100_000, '{"event":"firing"}', '{"event":"firing","step":[]}',
        '{"event":"fired"}', '{"event":"missed"}', '{"event":"missed","fault":0,"rank":0}',
    ],
    ids=lambda x: x[:20],
)  # fmt: skip
def test_a_line_that_no_injector_wrote_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / JOURNAL).parent.mkdir()
    (tmp_path / JOURNAL).write_text(line + "\n")
    for read in (read_events, read_journal, lambda run: Training(run, 0)):
        with pytest.raises(InjectionError, match="line 1 of the injection journal cannot be read"):
            read(tmp_path)
