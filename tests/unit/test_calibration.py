"""Why clean steps do not replay: the reason named, and the size of the difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forensics.calibration import Kept, Mismatch, because, settings_explain
from forensics.compare import StepDifference, TensorDifference
from forensics.sizes import Pair, described, grows, size_of

HERE = {
    "threads": 1,
    "deterministic": False,
    "host": "a",
    "precision": {"cuda.matmul.allow_tf32": False, "float32_matmul": "highest"},
    "packages": {"torch": "2.13", "duckdb": "1.4"},
}
LOSS = StepDifference(11, batch=False, loss=True, lr=False, gradients=(), before=(), after=())
SAME = [Pair(step, 2.0 + step, 2.0 + step) for step in range(11, 15)]


def mismatch(**changed: Any) -> Mismatch:
    return replace(Mismatch(11, LOSS, HERE, HERE, SAME), **changed)


@pytest.mark.parametrize(
    ("apart", "size"),
    [
        (0.0, "none"),
        (1.2e-7, "rounding"),  # C14
        (1e-5, "numerical"),  # C13: another machine
        (1e-3, "reduced precision"),  # C13: TF32
        (0.1, "other numbers"),
        (1.0, "exponent"),
        (float("inf"), "exponent"),
    ],
)
def test_sizes(apart: float, size: str) -> None:
    assert size_of(apart) == size


def test_a_wrong_exponent_is_told_from_a_drift() -> None:
    """C12: 1.4e-5 on a few elements, against a factor of two."""
    assert "between kernels" in described(Pair(3, 1.0, 1.0 + 1.4e-5))
    for wrong in (2.0, 0.5, 2.0**64, 0.0, float("nan")):
        assert "a wrong exponent" in described(Pair(3, 1.0, wrong)), wrong


def test_growing_from_rounding() -> None:
    values = [0.0, 0.0, 1e-7, 3e-7, 1e-6]
    pairs = [Pair(n, 1.0, 1.0 + value) for n, value in enumerate(values)]
    assert grows(pairs)
    assert not grows(pairs[2:])  # at once: nothing was equal before
    assert not grows([Pair(0, 1.0, 1.0), Pair(1, 1.0, 1.5)])
    assert not grows(SAME)


def named(changed: dict[str, Any]) -> str:
    return because(mismatch(replay={**HERE, **changed})).text


def test_the_setting_that_differs_is_named() -> None:
    assert named({"threads": 2}) == "the settings differ: threads 1 → 2"
    precision = {"cuda.matmul.allow_tf32": True, "float32_matmul": "highest"}
    assert "precision {'cuda.matmul.allow_tf32': False}" in named({"precision": precision})
    assert "deterministic False → True" in named({"deterministic": True})
    assert "packages {'torch': '2.13'} → {'torch': '2.6'}" in named(
        {"packages": {"torch": "2.6", "duckdb": "1.5"}}
    )
    assert "settings" not in named({"host": "b", "packages": {"torch": "2.13", "duckdb": "1.5"}})


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(LOSS, batch=True, ranks=(1,)), "batches differ on rank 1 from step 11 on"),
        (replace(LOSS, lr=True), "learning rates"),
        (replace(LOSS, scale=True), "loss scales"),
        (
            replace(LOSS, before=(TensorDifference("param", 0, "w", 0),)),
            "state is not the one that was saved: param w",
        ),
    ],
)
def test_what_a_resume_restores_comes_before_settings(found: StepDifference, says: str) -> None:
    assert says in because(mismatch(found=found)).text
    both = because(mismatch(found=found, replay={**HERE, "threads": 2})).text
    assert says in both
    assert "besides, the settings differ: threads 1 → 2" in both


def test_generators_and_buffers() -> None:
    assert "holds no generator's state" in because(mismatch(kept=Kept(generator=False))).text
    text = because(mismatch(kept=Kept(True, ("model.norm.running_mean",)))).text
    assert "generators (dropout), or buffers (model.norm.running_mean), are not restored" in text


def test_buffers_explain_a_step_only_where_nothing_else_differs() -> None:
    buffer = (TensorDifference("buffer", 0, "norm.running_mean", 0),)
    found = replace(LOSS, loss=False, after=buffer)
    told = "buffers are not restored"
    assert told in because(mismatch(found=found)).text
    other = TensorDifference("param", 1, "w", 0)
    for more in (
        replace(found, gradients=("w",)),
        replace(found, loss=True),
        replace(found, after=(*buffer, other)),
        replace(found, step=12),  # they were equal after the first step
    ):
        assert told not in because(mismatch(found=more)).text


def test_kernels_that_add_in_another_order_each_time() -> None:
    later = replace(LOSS, step=13)
    values = [0.0, 0.0, 1e-7, 5e-7]
    pairs = [Pair(11 + n, 1.0 + n, (1.0 + n) * (1 + x)) for n, x in enumerate(values)]
    for reason in (
        because(mismatch(found=later, losses=pairs)),
        because(mismatch(found=later, repeats=False)),
    ):
        assert "deterministic mode is off" in reason.text
        assert "torch.use_deterministic_algorithms(True)" in reason.next_step
    assert (
        "at step 13 the loss differs by 1e-07 of it, as rounding does"
        in because(mismatch(found=later, losses=pairs)).text
    )


def test_a_constant_output_is_an_alarm() -> None:
    losses = [Pair(11 + n, 2.0 + n, 4.1589) for n in range(4)]
    reason = because(mismatch(losses=losses))
    assert "the replay gives the same loss at each step" in reason.text
    assert "selftest" in reason.next_step


def test_what_other_settings_explain() -> None:
    """What the first step computes, and what grows from rounding; no batch, no state before it."""
    here, later = {**HERE, "threads": 2}, replace(LOSS, step=13)
    rounding = [Pair(11 + n, 2.0, 2.0 * (1 + x)) for n, x in enumerate((0.0, 0.0, 1e-7, 1e-6))]
    jump = [Pair(11 + n, 2.0, 2.0 + x) for n, x in enumerate((0.0, 0.0, 3.0, 4.0))]
    state = replace(LOSS, before=(TensorDifference("param", 0, "w", 0),))
    assert settings_explain(mismatch(replay=here))
    assert not settings_explain(mismatch())
    assert not settings_explain(mismatch(replay={**HERE, "host": "b"}))
    assert not settings_explain(mismatch(replay=here, found=replace(LOSS, batch=True)))
    assert not settings_explain(mismatch(replay=here, found=state))
    assert settings_explain(mismatch(replay=here, found=later, losses=rounding))
    assert not settings_explain(mismatch(replay=here, found=later, losses=jump))
    assert not settings_explain(mismatch(found=later, losses=rounding))


def test_who_gives_a_constant_is_told_and_two_alike_are_no_reason() -> None:
    moving = [2.0 + n for n in range(4)]

    def told(run: list[float], replay: list[float]) -> str:
        pairs = [Pair(11 + n, *both) for n, both in enumerate(zip(run, replay, strict=True))]
        return because(mismatch(losses=pairs)).text

    assert told([4.0] * 4, moving).startswith("the run gave the same loss at each step")
    assert told(moving, [4.0] * 4).startswith("the replay gives the same loss at each step")
    assert "the same loss at each step" not in told([4.0] * 4, [5.0] * 4)
    assert "the same loss at each step" not in told(moving, moving[::-1])
