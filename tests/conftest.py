"""What every test gets: fixed arithmetic, seeds that are printed, and no traces left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "sdc-guard",
    deadline=None,  # a loaded machine is no failure
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("sdc-guard")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDC_GUARD_RUN", "SDC_GUARD_CAPTURE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def seed() -> int:
    """The seed of a test; shown when the test fails. SDC_GUARD_TEST_SEED sets another."""
    value = int(os.environ.get("SDC_GUARD_TEST_SEED", "20240917"))
    print(f"seed: {value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator of the test's own."""
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _own_torch_generator() -> Iterator[None]:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)
