"""Signatures: what differs first, in the order in which a step runs, names the fault."""

from __future__ import annotations

import pytest

from forensics.compare import StepDifference, TensorDifference
from forensics.diagnose import classify, verdict

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


def test_another_host_leaves_the_verdict_open() -> None:
    here = {"host": "a", "devices": ["x"]}
    assert verdict(here, here)[0] == "intermittent"
    assert verdict(here, {"host": "b", "devices": ["x"]})[0] == "undetermined"
    assert verdict(here, {"host": "a", "devices": ["y"]})[0] == "undetermined"
