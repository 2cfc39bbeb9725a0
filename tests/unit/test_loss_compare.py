"""Losses compared at the precision that the log has, and no claim beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forensics.loss_compare import Losses, compare_losses, precision_of


@pytest.fixture
def losses(rng: np.random.Generator) -> list[float]:
    return [float(x) for x in rng.uniform(0.2, 20, 40).astype(np.float32)]


def log(values: list[float]) -> Losses:
    return {step: (value, None) for step, value in enumerate(values, start=1)}


def other(values: list[float], step: int, by: float) -> Losses:
    changed = list(values)
    changed[step - 1] += by
    return log(changed)


def test_full_precision_shows_the_last_bit(losses: list[float]) -> None:
    one_bit = math.ldexp(1.0, math.frexp(losses[16])[1] - 24)
    for printed in (losses, [float(str(np.float32(x))) for x in losses]):  # both forms in use
        assert precision_of(printed).exact
        assert compare_losses(log(printed), log(losses), 1, 40).difference is None
        found = compare_losses(log(printed), other(losses, 17, one_bit), 1, 40).difference
        assert found is not None
        assert (found.what, found.pair.step) == ("loss", 17)


@pytest.mark.parametrize("form", ["{:.4f}", "{:.4g}", "{:.2e}"])
def test_a_rounded_log_is_compared_as_it_was_rounded(form: str, losses: list[float]) -> None:
    printed = [float(form.format(x)) for x in losses]
    precision = precision_of(printed)
    assert not precision.exact
    assert "rounded to" in precision.text()
    assert compare_losses(log(printed), log(losses), 1, 40).difference is None
    assert compare_losses(log(printed), other(losses, 9, 1e-6), 1, 40).difference is None
    found = compare_losses(log(printed), other(losses, 9, 0.2), 1, 40).difference
    assert found is not None
    assert found.pair.step == 9


@pytest.mark.parametrize(
    ("printed", "near", "off"),
    [
        (["1.25", "2.50"], 1.2549, 1.2551),  # half of the last decimal
        (["1.25e-7", "2.51e3"], 1.2549e-7, 1.2551e-7),  # half of the third digit
    ],
)
def test_a_rounded_number_stands_for_half_a_unit_to_each_side(
    printed: list[str], near: float, off: float
) -> None:
    logged = log([float(text) for text in printed])
    rest = logged[2][0]
    assert rest is not None
    assert compare_losses(logged, log([near, rest]), 1, 2).difference is None
    assert compare_losses(logged, log([off, rest]), 1, 2).difference is not None


def test_of_several_differences_the_first_step_counts(losses: list[float]) -> None:
    wrong: Losses = {n: (x + (n == 25), 1.0 + (n in (11, 30))) for n, x in enumerate(losses, 1)}
    right: Losses = {n: (x, 1.0) for n, x in enumerate(losses, 1)}
    found = compare_losses(right, wrong, 1, 40).difference
    assert found is not None
    assert (found.what, found.pair.step) == ("gradient norm", 11)


def test_only_the_asked_steps_that_both_have_and_norms_too(losses: list[float]) -> None:
    mine: Losses = {n: (x, 2 * x) for n, x in enumerate(losses, start=1) if n != 5}
    theirs: Losses = {n: (x, 2 * x + (n == 20)) for n, x in enumerate(losses, start=1)}
    found = compare_losses(mine, theirs, 3, 30)
    assert (found.steps[0], found.steps[-1], len(found.steps)) == (3, 30, 27)
    assert found.difference is not None
    assert (found.difference.what, found.difference.pair.step) == ("gradient norm", 20)
    assert compare_losses(mine, theirs, 3, 19).difference is None
    nothing = compare_losses({1: (None, None)}, theirs, 1, 30)
    assert (nothing.steps, nothing.difference) == ((), None)


def test_numbers_that_are_none() -> None:
    nan, inf = math.nan, math.inf
    assert compare_losses({1: (nan, None), 2: (inf, None)}, {1: (nan, None), 2: (inf, None)}, 1, 2
                          ).difference is None  # fmt: skip
    for value in (2.0, -inf):
        found = compare_losses({1: (inf, None)}, {1: (value, None)}, 1, 1)
        assert found.difference is not None
