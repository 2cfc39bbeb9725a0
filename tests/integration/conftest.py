"""Real runs of the sample, each trained once, and the commands as a user calls them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import preloaded
import pytest
import small_training
from small_training import LAST, Fault
from training_parts import GUARDS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_runs" / "tiny_gpt.py"
SIZES = "CONTEXT, WIDTH, HEADS, BLOCKS, BATCH, VOCABULARY = 64, 128, 4, 4, 16, 256\n"
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
    words = [preloaded.python(), *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def bisect(*arguments: object) -> Answer:
    """sdc-bisect."""
    return run(["-m", "forensics.cli", *arguments])


def guard_command(*arguments: object) -> Answer:
    """sdc-guard."""
    return run(["-m", "sdc_guard.cli", *arguments])


@functools.cache
def small_sample() -> Path:
    """The sample with fewer tokens a step: the same tensors, in a fraction of the time."""
    path = Path(preloaded.python()).with_name("small_gpt.py")
    path.write_text(small_source(), encoding="utf-8")
    return path


def small_source() -> str:
    source = SAMPLE.read_text(encoding="utf-8")
    assert SIZES in source
    return source.replace(SIZES, SIZES.replace("64", "16", 1).replace("4, 16,", "4, 4,"))


def train(folder: Path, *options: object, script: Path | None = None) -> Path:
    """Train the small sample, or a script like it; fails the test when the training fails."""
    script = script or small_sample()
    command = [script, "--run", folder, "--every", EVERY, "--policy", "record", *options]
    done = run(command)
    assert done.code == 0, done.err
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
