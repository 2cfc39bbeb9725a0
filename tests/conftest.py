"""What every test gets: fixed arithmetic, seeds that are printed, and no traces left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from sdc_guard.store.run_file import Attempt, Layer, RunFile

# read when the compiler is imported: to start processes for it takes longer than to compile here
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

settings.register_profile(
    "sdc-guard",
    deadline=None,  # a loaded machine is no failure
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("sdc-guard")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while all is imported: a third of that time would be spent on it.

    What was imported is kept out of each later look for garbage, or for objects of a kind.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        torch.manual_seed(0)  # as each test does: it imports the compiler
        if "streamlit.testing.v1" in sys.modules:  # which takes a second to import
            import streamlit_once

            streamlit_once.share()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ("SDC_GUARD_RUN", "SDC_GUARD_CAPTURE", "SDC_GUARD_INJECT")
    for name in (*mine, "RANK", "WORLD_SIZE"):
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


@pytest.fixture
def no_space() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """no_space(n): within it, the file system refuses to let any file grow beyond n bytes.

    Root may write to a read-only folder, and a full disk needs a mount; a limit on the size of
    files makes write(2) fail half-way all the same, with EFBIG in place of ENOSPC.
    """

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def empty_run(tmp_path: Path) -> Path:
    """A run's folder: one layer, one attempt that starts at step 0, no trace."""
    folder = tmp_path / "run"
    folder.mkdir()
    layers = (Layer(0, "w", ("tied",), (2, 3), "float32", 6),)
    RunFile("run", 1, layers, (Attempt(1, 0, 0.0),)).write(folder)
    return folder
