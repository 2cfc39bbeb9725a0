"""A ring that was written over before its rows were published: the record says which steps it lost.

The rings are real ones of the smallest size, which a few hundred steps with many layers go round.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from reported import report_on

from app.queries import coverage
from sdc_guard import RunReader
from sdc_guard.store import left_behind
from sdc_guard.store.left_behind import fold
from sdc_guard.store.overrun import KIND
from sdc_guard.store.publishing import publish_rows
from sdc_guard.store.ring import Ring, frames, ring_folder, rings, went_round
from sdc_guard.store.row_frames import row_frame
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.segments import rank_folder
from sdc_guard.store.writer import Health, Writer

LAYERS = np.zeros(200, dtype=np.int32)  # of a step: some 2 kB of a ring of 256 kB
EVENTS = f"SELECT attempt, step, rank, detail FROM every.events WHERE kind = '{KIND}' ORDER BY ALL"


def leave(run: Path, steps: range, *, rank: int = 0, attempt: int = 1) -> set[int]:
    """A ring as a killed process leaves it, and the steps that it lost."""
    ring = Ring(ring_folder(run), rank, 0)
    for step in steps:
        ring.put(row_frame("steps", {"attempt": attempt, "step": step, "loss": 0.5}, 1))
        columns = {"attempt": attempt, "step": step, "layer": LAYERS, "norm": LAYERS + 0.5}
        ring.put(row_frame("layers", columns, len(LAYERS)))
    ring.leave()
    content = ring.path.read_bytes()
    held = [msgpack.unpackb(frame) for frame in frames(content)]
    assert went_round(content) == (len(held) < 2 * len(steps))
    return set(steps) - {int(frame[3]["step"]) for frame in held if frame[1] == "steps"}


def publish(run: Path, steps: Iterable[int], *, rank: int = 0, attempt: int = 1) -> None:
    writer = Writer(run, rank, Health())
    for step in steps:
        writer.append("steps", attempt=attempt, step=step, loss=0.5)
    writer.close()


def lost(missing: Iterable[int]) -> str:
    """What is told of these steps."""
    left = sorted(missing)
    ends = [at for at, step in enumerate(left) if at + 1 == len(left) or left[at + 1] > step + 1]
    starts = [0, *(at + 1 for at in ends[:-1])]
    named = [
        f"{left[a]}" if a == b else f"{left[a]} to {left[b]}"
        for a, b in zip(starts, ends, strict=True)
    ]
    assert len(named) <= 3
    return (
        f"steps {', '.join(named)} ({len(left)} in all) were overwritten in the ring before being "
        "published: the process was killed while its writer was behind"
    )


def test_steps_between_the_last_published_and_the_oldest_of_the_ring(empty_run: Path) -> None:
    publish(empty_run, range(20))
    missing = leave(empty_run, range(20, 420))
    assert len(missing) > 100
    told = lost(missing)
    expected = [(1, 20, 0, told)]
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == expected
        (trouble,) = reader.troubles()
        assert (trouble.kind, trouble.first_step, trouble.last_step, trouble.count) == (
            "missing steps", 20, max(missing), len(missing),
        )  # fmt: skip
        assert trouble.text.endswith(f"; {told}")
        assert coverage(reader).blind == (f"{KIND}: {told}",)
    assert report_on(empty_run).blind == ((20, KIND, told),)
    # and it is still known when the ring is folded in and gone
    fold(empty_run)
    assert rings(empty_run) == []
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == expected
        assert reader.troubles()[0].text.endswith(f"; {told}")


def test_a_ring_that_went_round_and_lost_nothing_says_nothing(empty_run: Path) -> None:
    publish(empty_run, range(410))  # all that the ring wrote over was published
    leave(empty_run, range(420))
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []
        assert reader.troubles() == []
    fold(empty_run)
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []


def test_a_gap_before_a_ring_that_did_not_go_round_is_not_its_loss(empty_run: Path) -> None:
    publish(empty_run, range(20))
    assert leave(empty_run, range(30, 40)) == set()
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []
        assert [trouble.text for trouble in reader.troubles()] == [
            "missing steps: 10 in 1 gaps (attempt 1, rank 0)"
        ]


@pytest.mark.parametrize("steps", [[*range(50), *range(51, 410)], range(5, 410)])
def test_a_step_that_was_not_recorded_is_not_the_rings_loss(
    steps: Iterable[int], empty_run: Path
) -> None:
    publish(empty_run, steps)
    leave(empty_run, range(400, 420))
    leave(empty_run, range(50, 420))
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []


def test_nothing_published_counts_from_the_attempts_first_step(empty_run: Path) -> None:
    known = RunFile.read(empty_run)
    replace(known, attempts=(*known.attempts, Attempt(2, 100, 1.0))).write(empty_run)
    publish(empty_run, range(120))
    missing = leave(empty_run, range(100, 500), attempt=2)
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == [(2, 100, 0, lost(missing))]


def test_of_the_ranks_the_one_that_lost_steps_is_named(empty_run: Path) -> None:
    for rank in range(2):
        publish(empty_run, range(20 + 380 * rank), rank=rank)
    missing = [leave(empty_run, range(400), rank=rank) for rank in range(2)]
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == [(1, 20, 0, lost(missing[0] - set(range(20))))]


def test_what_a_process_kept_in_a_ring_before_is_not_lost(empty_run: Path) -> None:
    """It makes a larger ring when it needs one, and the first is still there."""
    missing = leave(empty_run.with_name("the same"), range(400, 800))
    publish(empty_run, range(max(missing) - 20))
    assert leave(empty_run, range(400, 800)) == missing
    leave(empty_run, range(max(missing) - 20, max(missing) + 1))
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []
    fold(empty_run)
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []


def test_a_damaged_file_may_have_held_them(empty_run: Path) -> None:
    publish(empty_run, range(20))
    publish(empty_run, range(20, 40))
    leave(empty_run, range(40, 440))
    segment = sorted(rank_folder(empty_run, "steps", 0).glob("seg-*.parquet"))[-1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == []
        assert any(trouble.kind == "missing steps" for trouble in reader.troubles())


def test_a_fold_that_was_killed_before_its_end_tells_it_once(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(empty_run, range(20))
    told = lost(leave(empty_run, range(20, 420)))

    def refuse(_path: Path, *, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(KeyboardInterrupt):
            fold(empty_run)
    for left in (1, 0):
        assert len(rings(empty_run)) == left
        with RunReader(empty_run) as reader:
            assert reader.rows(EVENTS) == [(1, 20, 0, told)]
        fold(empty_run)


def test_a_fold_that_was_killed_between_two_tables_tells_it_all_the_same(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(empty_run, range(20))
    told = lost(leave(empty_run, range(20, 420)))
    done: list[str] = []

    def twice(run: Path, table: str, *rest: Any, **named: Any) -> int:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(table)
        return publish_rows(run, table, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(left_behind, "publish_rows", twice)
        with pytest.raises(KeyboardInterrupt):
            fold(empty_run)
    assert "steps" in done
    fold(empty_run)
    with RunReader(empty_run) as reader:
        assert reader.rows(EVENTS) == [(1, 20, 0, told)]


STARVED = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from sdc_guard.store import writer as module
from sdc_guard.store.writer import Health, Writer
writer = Writer(Path(sys.argv[1]), 0, Health())
def step(number):
    writer.append("steps", attempt=1, step=number, loss=number / 3)
    layers = np.zeros(200, dtype=np.int32)
    writer.append("layers", attempt=1, step=number, layer=layers, norm=layers + 0.5)
for number in range(50):
    step(number)
assert writer.flush()
module.publish_rows = lambda *_, **__: threading.Event().wait()  # a disk that takes nothing
for number in range(50, 450):
    step(number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_starved_in_a_process_that_was_killed(empty_run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(empty_run)],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with RunReader(empty_run) as reader:
        steps = [step for (step,) in reader.rows("SELECT step FROM steps ORDER BY step")]
        missing = set(range(450)) - set(steps)
        assert len(missing) > 100
        assert reader.rows(EVENTS) == [(1, 50, 0, lost(missing))]
