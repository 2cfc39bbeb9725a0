"""kill -9 over and over, of a training and of the process that seals its trace: what the training
had done is recorded, each row once, and the run opens every time."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest

from sdc_guard import RunReader
from sdc_guard.store.ring import rings

ROOT = Path(__file__).parents[2]
STARTED: list[subprocess.Popen[bytes]] = []

TRAINING = """
import os, sys
import torch
from sdc_guard import Guard
run, first = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(first)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
guard = Guard(model, optimizer, run=run, first_step=first, policy="record")
for step in range(first, first + 100_000):
    batch = torch.randn(4, 8)
    loss = model(batch).square().mean()
    loss.backward()
    guard.observe(loss, batch)
    optimizer.step()
    optimizer.zero_grad()
    os.write(1, b"%d\\n" % step)  # not buffered: what is done is told, and survives
"""

SEALING = """
import sys, time
from pathlib import Path
from sdc_guard.store import sealing
sealing.GRACE_SECONDS = 0.0
while True:
    sealing.seal_run(Path(sys.argv[1]))
    time.sleep(0.02)  # the training needs a core, too
"""


def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [preloaded.python(), "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # else a part of what was told stays in our own buffer
        cwd=ROOT,
    )
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    for process in STARTED:
        process.kill()
        process.communicate()
    STARTED.clear()


def kill(process: subprocess.Popen[bytes]) -> list[bytes]:
    """End a process at once; the lines that it had written."""
    process.send_signal(signal.SIGKILL)
    out, errors = process.communicate()  # to the end: of what was forked for it, too
    STARTED.remove(process)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    return out.split(b"\n")[:-1]


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), pytest.param(2, 100, marks=pytest.mark.slow)], ids=["3", "100"]
)
def test_nothing_that_was_done_is_lost_and_nothing_is_there_twice(
    tmp_path: Path, seed: int, kills: int
) -> None:
    print(f"seed {seed}")
    numbers = random.Random(seed)
    run = tmp_path / "run"
    first, attempts = 0, dict[int, list[int]]()
    sealing: subprocess.Popen[bytes] | None = None
    for attempt in range(1, kills + 1):
        training = start(TRAINING, run, first)
        assert training.stdout is not None
        newest = int(training.stdout.readline())
        if sealing is None:
            sealing = start(SEALING, run)
        if numbers.random() < 0.5:
            time.sleep(numbers.random() * 0.5)
            kill(sealing)
            sealing = start(SEALING, run)
        time.sleep(numbers.random() * 2.0)
        done = [newest, *map(int, kill(training))]
        attempts[attempt] = done
        with RunReader(run) as reader:
            assert not reader.damaged
            found = reader.rows("SELECT step FROM every.steps WHERE attempt = $a", {"a": attempt})
            lost = sorted(set(done) - {step for (step,) in found})
            assert not lost, f"kill {attempt} after step {done[-1]}: {len(lost)} from {lost[0]} on"
        first = done[-1] + 1
    if sealing is not None:
        kill(sealing)
    with RunReader(run) as reader:
        assert not reader.damaged
        for attempt, done in attempts.items():
            rows = reader.rows(
                "SELECT step, count(*), count(loss) FROM every.steps WHERE attempt = $a"
                " GROUP BY step ORDER BY step",
                {"a": attempt},
            )
            # the step under way may be there too
            assert [row[0] for row in rows] in (done, [*done, done[-1] + 1])
            assert {row[1:] for row in rows} == {(1, 1)}
            layers = reader.rows(
                "SELECT step, layer, count(*) FROM every.layers WHERE attempt = $a GROUP BY ALL",
                {"a": attempt},
            )
            assert {count for _, _, count in layers} == {1}
            assert len(layers) == 4 * len(rows)
        total = reader.rows("SELECT count(*), count(DISTINCT step) FROM steps")[0]
        assert total[0] == total[1]
    assert len(rings(run)) <= 1  # the next training folds in what the one before it left
