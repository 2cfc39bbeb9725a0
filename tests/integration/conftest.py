"""Real runs of the sample, each trained once, and the commands as a user calls them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import small_training
from small_training import LAST, Fault
from training_parts import GUARDS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_runs" / "tiny_gpt.py"
STEPS, EVERY = 50, 10


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(command: Sequence[object], cwd: Path | None = None) -> Answer:
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=cwd, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def bisect(*arguments: object) -> Answer:
    """sdc-bisect."""
    return run(["-m", "forensics.cli", *arguments])


def guard_command(*arguments: object) -> Answer:
    """sdc-guard."""
    return run(["-m", "sdc_guard.cli", *arguments])


def sample_command(folder: Path, *options: object) -> list[str]:
    """The command that trains the sample into `folder`."""
    parts = [sys.executable, SAMPLE, "--run", folder, "--every", EVERY, "--policy", "record"]
    return [str(part) for part in [*parts, *options]]


def train(folder: Path, *options: object) -> Path:
    """Train the sample; fails the test when the training fails."""
    done = subprocess.run(
        sample_command(folder, *options), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing went wrong. Tests only read it."""
    return train(tmp_path_factory.mktemp("clean") / "run", "--steps", STEPS)


@pytest.fixture(scope="session")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one weight bit flipped at step 27. Tests add bisect sessions, nothing else."""
    folder = tmp_path_factory.mktemp("faulty") / "run"
    return train(folder, "--steps", STEPS, "--fault", "weight@27", "--fault-seed", 5)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault | None], Path]:
    """Each training once."""
    folder = tmp_path_factory.mktemp("trained")

    @functools.cache
    def one(fault: Fault | None) -> Path:
        return small_training.train(folder / str(len(list(folder.iterdir()))), LAST, fault)

    return one


@pytest.fixture
def recorded(
    trained: Callable[[Fault | None], Path], tmp_path: Path
) -> Callable[[Fault | None], Path]:
    """A copy of a run with this fault, or with none."""

    def copy(fault: Fault | None) -> Path:
        return Path(shutil.copytree(trained(fault), tmp_path / "run"))

    return copy


@pytest.fixture(autouse=True)
def _close_guards() -> Iterator[None]:
    yield
    while GUARDS:
        GUARDS.pop().close()
