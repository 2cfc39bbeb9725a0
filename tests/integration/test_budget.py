"""A run with a digest budget against its replay: the right step, or a range that holds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import EVERY, LAST, TENSORS, Fault, keep_after_and_before, thin_out, train

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.journal import Session
from forensics.recorded import from_trace
from forensics.replay import ResumeCommand
from forensics.result import Result
from forensics.verify import Verifier
from sdc_guard import RunReader
from sdc_guard.guard import RUN_VARIABLE
from sdc_guard.signals.capture import VARIABLE, CaptureRequest

FAULTS = [
    Fault("param", 13, "1.weight"),
    Fault("param", 16, "2.bias", bit=0),
    Fault("param", 8, "0.weight"),  # read from step 13 on
    Fault("exp_avg", 13, "1.weight"),
    Fault("exp_avg", 11, "0.weight", bit=30),
    Fault("gradient", 14, "2.weight"),
    Fault("update", 12, "1.bias"),
    Fault("update", 11, "0.weight"),
    Fault("activation", 17),
]
TRUE_CLASS = {
    "param": "state at rest",
    "exp_avg": "state at rest",
    "gradient": "optimizer update",  # it is measured before
    "update": "optimizer update",
    "activation": "activation",
}


@dataclass(frozen=True)
class InThisProcess(Verifier):
    """A verifier whose replays train here, without starting a process for each."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of the guard

    def _replay(
        self, name: str, start: Checkpoint, until: int, capture: CaptureRequest | None = None
    ) -> Path:
        folder = self.session.folder / name
        asked = {RUN_VARIABLE: str(folder)}
        asked |= {VARIABLE: capture.to_variable()} if capture else {}
        os.environ.update(asked)
        try:
            return train(folder, until, resume=start.path, **self.options)
        finally:
            for variable in asked:
                del os.environ[variable]


def verified(run: Path, start: int, until: int = LAST, **options: Any) -> Result:
    found = {checkpoint.step: checkpoint for checkpoint in index(run)}
    command = ResumeCommand(("python", "train.py", "{ckpt}"))
    verifier = InThisProcess(run, None, command, Session.new(run), lambda line: None, options)
    return verifier.verify(found[start], until, found.get(start - EVERY))


def last_checkpoint_before(fault: Fault) -> int:
    return (fault.step - 1) // EVERY * EVERY


def name_of(value: object) -> str:
    return f"{value.site}@{value.step}-{value.name}" if isinstance(value, Fault) else str(value)


@pytest.mark.parametrize("fault", [FAULTS[n] for n in (0, 3, 5, 7, 8)], ids=name_of)
def test_a_whole_record_names_step_and_class(
    recorded: Callable[[Fault | None], Path], fault: Fault
) -> None:
    found = verified(recorded(fault), last_checkpoint_before(fault))
    assert (found.last_clean, found.first_corrupt) == (fault.step - 1, fault.step)
    assert (found.exact, found.proven, found.watched) == (True, True, 1)
    assert found.kind == TRUE_CLASS[fault.site]


@pytest.mark.parametrize(
    ("fault", "per_step"),
    [
        *((FAULTS[0], per_step) for per_step in (1, 2, 4, 7, 15)),
        *zip(FAULTS[1:], (7, 1, 2, 4, 1, 2, 7, 3), strict=True),
    ],
    ids=name_of,
)
def test_a_part_of_the_record_never_names_a_wrong_step_or_class(
    recorded: Callable[[Fault | None], Path], fault: Fault, per_step: int
) -> None:
    run = recorded(fault)
    thin_out(run, per_step)
    found = verified(run, last_checkpoint_before(fault))
    evidence = " ".join(found.evidence)
    assert found.first_corrupt is not None  # the state after step 20 is recorded whole
    assert found.last_clean is not None
    assert found.last_clean < fault.step <= found.first_corrupt, evidence
    assert not found.exact or found.first_corrupt == fault.step, evidence
    if found.kind == "undetermined":
        assert TRUE_CLASS[fault.site] in evidence
    else:
        assert found.kind == TRUE_CLASS[fault.site], evidence
    assert found.watched is not None
    assert (0 < found.watched < 1) == (per_step < TENSORS)


def test_a_change_that_was_watched_is_exact(recorded: Callable[[Fault | None], Path]) -> None:
    fault = FAULTS[0]
    run = recorded(fault)
    keep_after_and_before(run, fault.step - 1, ("param", "1.weight"))
    found = verified(run, last_checkpoint_before(fault))
    assert (found.first_corrupt, found.exact, found.kind) == (fault.step, True, "state at rest")
    (tensor,) = found.tensors
    assert tensor.change is not None
    assert (tensor.name, tensor.change.index, tensor.change.bits) == ("1.weight", 3, [20])


def test_a_fault_without_a_trace_of_itself_leaves_nothing_to_find(
    recorded: Callable[[Fault | None], Path],
) -> None:
    run = recorded(Fault("exp_avg", 11, "0.weight", bit=3))  # of a zero: lost by rounding
    thin_out(run, 2)
    found = verified(run, 10)
    assert (found.first_corrupt, found.last_clean, found.exit_code) == (None, LAST, 0)
    assert "after step 20 all parameters and Adam's moments are equal" in found.evidence


def test_what_was_not_compared_at_the_end_is_not_called_clean(
    recorded: Callable[[Fault | None], Path],
) -> None:
    run = recorded(None)
    thin_out(run, 2)
    found = verified(run, 10, until=18)
    assert (found.last_clean, found.exact, found.proven, found.exit_code) == (15, False, False, 0)
    assert found.evidence[1] == (
        "all parameters and Adam's moments were compared last after step 15"
    )


def test_a_step_counter_is_named_with_its_bit(tmp_path: Path) -> None:
    fault = Fault("step", 13, "1.weight", bit=22)
    result = verified(train(tmp_path, LAST, fault), 10)
    assert (result.first_corrupt, result.last_clean, result.exact) == (13, 12, True)
    assert (result.kind, result.proven, result.rank) == ("state at rest", True, 0)
    (tensor,) = result.tensors
    before = int(torch.tensor(12.0).view(torch.int32))  # as many updates were made
    assert tensor.as_dict() == {
        "kind": "step",
        "name": "1.weight",
        "index": 0,
        "bits": [22],
        "before": f"0x{before:x}",
        "after": f"0x{before ^ 1 << 22:x}",
        "before_value": "12.0",
        "after_value": str(float(torch.tensor(before ^ 1 << 22).int().view(torch.float32))),
    }


@pytest.mark.parametrize("budget", [None, 0.2])
def test_a_step_counter_is_named_from_the_record_alone(
    budget: float | None, tmp_path: Path
) -> None:
    run = train(tmp_path, LAST, Fault("step", 3, "1.weight", bit=22), budget=budget)
    with RunReader(run) as reader:
        result = from_trace(reader)
    assert result is not None
    assert (result.first_corrupt, result.kind, result.proven) == (3, "state at rest", True)
    (tensor,) = result.tensors
    assert tensor.change is not None
    assert (tensor.kind, tensor.name, tensor.dtype) == ("step", "1.weight", "float32")
    assert (tensor.change.index, tensor.change.bits) == (0, [22])
