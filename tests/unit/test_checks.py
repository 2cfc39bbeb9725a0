"""Checks as one: each is told what it listens to, and keeps its troubles to itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sdc_guard.checks.check import Check, Checks
from sdc_guard.detect.alert import Alert
from sdc_guard.detect.step_signals import StepSignals
from sdc_guard.store.health import Health

NAMES = sorted(name for name in vars(Check) if not name.startswith("_"))


class Noting(Check):
    """Notes what it is told; a subclass of it is told by a method that it inherits."""

    def __init__(self) -> None:
        self.told: list[str] = []


def noting(*names: str) -> Noting:
    """One that listens to these alone."""

    def method(name: str) -> Any:
        return lambda self, *_: self.told.append(name)

    made = type("Listening", (Noting,), {name: method(name) for name in names})
    below = type("Inheriting", (made,), {})
    return below()  # type: ignore[no-any-return] # made here


def tell_all(checks: Checks) -> None:
    """Each of its methods once, in the order of their names."""
    signals = StepSignals(
        norms=np.ones((1, 1)),
        max_abs=np.ones((1, 1)),
        zeros=np.zeros((1, 1), dtype=np.int64),
        nonfinite=np.zeros((1, 1), dtype=np.int64),
    )
    arguments: dict[str, tuple[Any, ...]] = {
        "observed": (0, 1.0, None),
        "measured": ([0], np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int64), signals),
        "alerted": (Alert(0, "any", None, "", 1.0, 0.5, "suspect"),),
        "state_written": (),
        "layers_changed": (),
        "close": (),
    }
    for name in NAMES:
        getattr(checks, name)(*arguments.get(name, (0,)))


@pytest.mark.parametrize("name", NAMES)
def test_a_check_is_told_by_the_method_that_it_has(name: str) -> None:
    one, other = noting(name), noting()
    tell_all(Checks([other, one], Health()))
    assert (one.told, other.told) == ([name], [])


def test_each_of_several_checks_is_told_everything() -> None:
    several = [noting(*NAMES), noting(*NAMES)]
    tell_all(Checks(several, Health()))
    assert [check.told for check in several] == [NAMES, NAMES]


def test_a_check_that_fails_is_counted_and_the_next_one_told() -> None:
    class Failing(Check):
        def judged(self, step: int) -> None:
            raise RuntimeError("broken on purpose")

    health, other = Health(), noting("judged")
    Checks([Failing(), other], health).judged(0)
    assert other.told == ["judged"]
    assert health.errors == 1
