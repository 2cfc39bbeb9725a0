"""What the processes of a set-up told, compared with values computed beside the guard."""

from __future__ import annotations

from typing import Any

import pytest
from distributed_launch import Outcome


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-6, abs=1e-30, nan_ok=True)


def same(found: dict[Any, list[float]], expected: dict[Any, list[float]]) -> None:
    """The same gradients, and the same measures of each."""
    assert sorted(found) == sorted(expected)
    for key, measures in expected.items():
        assert found[key] == near(measures), key


def expected(told: Any, kind: str) -> dict[Any, list[float]]:
    return {(step, name): v for (of, step, name), v in told["expected"].items() if of == kind}


def sound(outcome: Outcome, scenario: str) -> None:
    """Training was that without a guard on every rank, and the guard had no trouble."""
    for rank in range(outcome.world):
        told = outcome.told(scenario, rank)
        assert told["differences"] == [], rank
        assert told["health"] == (0, ""), rank
