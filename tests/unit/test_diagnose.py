"""Signatures: what differs first, in the order in which a step runs, names the fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forensics.compare import StepDifference, TensorDifference
from forensics.diagnose import Known, classify, verdict

TENSORS = 159
ONE = (TensorDifference("param", 3, "w", 0),)
THREE = tuple(TensorDifference(kind, 3, "w", 0) for kind in ("param", "exp_avg", "exp_avg_sq"))
ALL = tuple(TensorDifference("param", number, f"w{number}", 0) for number in range(TENSORS))


def difference(
    step: int = 5,
    batch: bool = False,
    loss: bool = False,
    lr: bool = False,
    gradients: tuple[str, ...] = (),
    before: tuple[TensorDifference, ...] = (),
    after: tuple[TensorDifference, ...] = (),
) -> StepDifference:
    return StepDifference(step, batch, loss, lr, gradients, before, after)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (difference(before=ONE, loss=True, gradients=("w", "v"), after=ALL), "state at rest"),
        (difference(batch=True, loss=True, gradients=("w",), after=ALL), "batch"),
        (difference(loss=True, gradients=("w", "v"), after=ALL), "activation"),
        (difference(gradients=("w",), after=THREE), "gradient"),
        (difference(after=THREE), "optimizer update"),
        (difference(before=ALL, after=ALL), "resume"),
        (difference(lr=True, after=ALL), "resume"),
    ],
)
def test_signatures(found: StepDifference, kind: str) -> None:
    assert classify(found, TENSORS).kind == kind


PARTLY = Known(before=False, left=False)


@pytest.mark.parametrize(
    ("found", "known", "names"),
    [
        (difference(loss=True, after=ONE), PARTLY, "state at rest, optimizer update, activation"),
        (difference(gradients=("w",)), PARTLY, "state at rest, optimizer update, gradient"),
        (difference(after=ONE), PARTLY, "state at rest, optimizer update"),
        (difference(loss=True), Known(before=False), "state at rest, activation"),
        (difference(before=ONE), Known(False, False, carried=False),
         "state at rest, optimizer update"),
    ],
)  # fmt: skip
def test_what_was_not_watched_is_not_excluded(
    found: StepDifference, known: Known, names: str
) -> None:
    diagnosis = classify(found, TENSORS, known)
    assert diagnosis.kind == "undetermined"
    assert diagnosis.text.endswith(f"the state was recorded in part: one of {names}")


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (difference(before=ONE, loss=True), "state at rest"),  # the run itself shows it
        (difference(batch=True, loss=True), "batch"),
        (difference(lr=True), "resume"),
    ],
)
def test_what_needs_no_knowledge_of_the_state(found: StepDifference, kind: str) -> None:
    assert classify(found, TENSORS, PARTLY).kind == kind


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"scale": True}, "resume"),
        ({"scale": True, "loss": True}, "resume"),
        ({"skipped": True, "after": THREE}, "resume"),  # equal gradients, another decision
        ({"skipped": True, "gradients": ("w",)}, "gradient"),  # the skip follows from them
    ],
)
def test_the_loss_scale_and_a_skip(more: dict[str, Any], kind: str) -> None:
    assert classify(replace(difference(), **more), TENSORS).kind == kind


def test_another_host_leaves_the_verdict_open() -> None:
    here = {"host": "a", "devices": ["x"]}
    assert verdict(here, here)[0] == "intermittent"
    assert verdict(here, {"host": "b", "devices": ["x"]})[0] == "undetermined"
    assert verdict(here, {"host": "a", "devices": ["y"]})[0] == "undetermined"


def test_the_tensors_that_a_fault_hit_first() -> None:
    """Wrong gradients are a cause only where batch and loss were equal."""
    wrong = (TensorDifference("grad", 3, "w", 0),)
    found = replace(difference(gradients=("w",), after=THREE), wrong=wrong)
    assert found.first_tensors == ("before", wrong)
    for more in ({"loss": True}, {"batch": True}, {"loss": True, "batch": True}):
        assert replace(found, **more).first_tensors == ("after", THREE)
    assert replace(found, wrong=()).first_tensors == ("after", THREE)
    assert replace(found, before=ONE, loss=True).first_tensors == ("before", ONE)
