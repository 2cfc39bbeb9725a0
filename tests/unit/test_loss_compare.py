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
