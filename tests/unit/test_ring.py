"""The ring: what a killed process put there is read back, and nothing that is not whole."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard import Guard
from sdc_guard.store import writer
from sdc_guard.store.left_rows import left_tables
from sdc_guard.store.ring import SMALLEST, Ring, framed, frames, left_content, ring_folder, rings
from sdc_guard.store.row_frames import row_frame
from sdc_guard.store.schema import TABLES
from sdc_guard.store.writer import Health, Writer


def content_of(ring: Ring) -> bytes:
    return ring.path.read_bytes()


def test_the_newest_frames_come_back_in_order(tmp_path: Path, rng: np.random.Generator) -> None:
    ring = Ring(tmp_path, 3, 0)
    put = [["frame", rng.bytes(int(size))] for size in rng.integers(0, 9_000, 200)]
    assert all(ring.put(content) for content in put)
    found = [msgpack.unpackb(payload) for payload in frames(content_of(ring))]
    assert 20 < len(found) < 200  # of some 900 kB, what fits into 256
    assert found == put[-len(found) :]
    size = sum(len(content) for _, content in found)
    assert SMALLEST / 2 < size < SMALLEST
    ring.remove()


def test_a_frame_that_is_too_large_is_refused_and_harms_none(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 0, 0)
    assert ring.put(["before"])
    assert not ring.put([bytes(SMALLEST // 4)])
    with pytest.raises(TypeError):
        ring.put([object()])
    assert ring.put(["after"])
    found = [msgpack.unpackb(payload) for payload in frames(content_of(ring))]
    assert found == [["before"], ["after"]]
    ring.remove()


@given(st.data())
def test_a_changed_bit_costs_its_frame_alone(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.binary(max_size=100), min_size=1, max_size=6))
    whole = [framed(number, payload) for number, payload in enumerate(payloads)]
    content = bytearray(b"".join(whole))
    assert frames(bytes(content)) == payloads
    place = data.draw(st.integers(0, 8 * len(content) - 1))
    content[place // 8] ^= 1 << place % 8
    ends = np.cumsum([len(frame) for frame in whole])
    hit = int(np.searchsorted(ends, place // 8, side="right"))
    others = [payload for number, payload in enumerate(payloads) if number != hit]
    # a bit in what fills a frame up changes nothing
    assert frames(bytes(content)) in (others, payloads)


def test_a_payload_that_looks_like_a_frame_is_none() -> None:
    inner = framed(7, b"inside")
    content = framed(0, inner) + framed(1, b"x" + inner)
    assert frames(content) == [inner, b"x" + inner]


def test_what_is_in_use_is_left_alone(tmp_path: Path) -> None:
    ring = Ring(ring_folder(tmp_path), 2, 0)
    ring.put(["frame"])
    assert rings(tmp_path) == [(2, ring.path)]
    with left_content(ring.path) as content:
        assert content is None
    ring.leave()
    with left_content(ring.path) as content:
        assert content is not None
        assert frames(content) == [msgpack.packb(["frame"])]
        with left_content(ring.path, alone=True) as second:
            assert second is None
    with left_content(ring.path, alone=True) as content:
        assert content is not None
    ring.path.unlink()
    with left_content(ring.path) as content:
        assert content is None


def test_a_forked_child_does_not_keep_the_ring_in_use(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 0, 0)
    ring.put(["frame"])
    readable, writable = os.pipe()
    began, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writable)
        os.write(begins, b".")
        os.read(readable, 1)  # as a data loader's worker lives on
        os._exit(0)
    os.read(began, 1)
    ring.leave()
    try:
        with left_content(ring.path) as content:
            assert content is not None
    finally:
        os.close(writable)
        os.waitpid(child, 0)
        for end in (readable, began, begins):
            os.close(end)


def test_rows_come_back_in_value_and_type(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 0, 0)
    step = {
        "attempt": 1, "step": -(2**63), "loss": math.nan, "lr": None, "grad_norm": np.float32(0.1),
        "skipped": np.True_, "tokens": np.int64(2**62), "batch_hash": -1,
    }  # fmt: skip
    layers = {
        "attempt": 1, "step": np.array([4, 5]), "layer": np.array([0, 1], dtype=np.int32),
        "norm": [0.5, math.inf], "scope": "local",
    }  # fmt: skip
    ring.put(row_frame("steps", step, 1))
    ring.put(row_frame("layers", layers, 2))
    ring.put(row_frame("events", {"attempt": 1, "step": 3, "kind": "ß\x00", "detail": "{}"}, 1))
    found = left_tables(content_of(ring), {})
    assert list(found) == ["steps", "layers", "events"]
    (row,) = found["steps"].to_pylist()
    assert found["steps"].schema == TABLES["steps"]
    assert math.isnan(row.pop("loss"))
    assert {key: value for key, value in row.items() if value is not None} == {
        "attempt": 1, "step": -(2**63), "grad_norm": float(np.float32(0.1)), "skipped": True,
        "tokens": 2**62, "batch_hash": -1,
    }  # fmt: skip
    assert found["layers"].column("norm").to_pylist() == [0.5, math.inf]
    assert found["layers"].column("step").to_pylist() == [4, 5]
    assert found["events"].to_pylist()[0]["kind"] == "ß\x00"
    ring.remove()


def test_a_writer_leaves_a_ring_only_if_something_is_in_it(empty_run: Path) -> None:
    writer = Writer(empty_run, 0, Health())
    writer.append("steps", attempt=1, step=1)
    assert len(rings(empty_run)) == 1
    writer.close()
    assert rings(empty_run) == []


def test_a_run_without_room_for_a_ring_is_recorded(empty_run: Path) -> None:
    ring_folder(empty_run).parent.mkdir()
    ring_folder(empty_run).write_text("in the way")
    health = Health()
    writer = Writer(empty_run, 0, health)
    writer.append("steps", attempt=1, step=1)
    assert writer.flush()
    writer.close()
    assert (health.written, health.errors) == (1, 1)
    assert "last second" in health.last_error


def test_of_a_small_model_seconds_of_a_fast_loop_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a thousand steps while the disk takes nothing."""
    goes_on, publish = threading.Event(), writer.publish_rows

    def late(*arguments: Any, **options: Any) -> int:
        goes_on.wait()
        return publish(*arguments, **options)

    monkeypatch.setattr(writer, "publish_rows", late)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, run=tmp_path, policy="record") as guard:
        try:
            for _ in range(1200):
                loss = model(torch.ones(1, 4)).square().mean()
                loss.backward()
                guard.observe(loss)
                optimizer.step()
                optimizer.zero_grad()
            ((_, path),) = rings(tmp_path)
            left = left_tables(path.read_bytes(), dict.fromkeys(range(4), 4))
        finally:
            goes_on.set()
    assert set(left["steps"].column("step").to_pylist()) == set(range(1200))


KILLED = """
import os, signal, sys
from pathlib import Path
from sdc_guard.store import writer as module
from sdc_guard.store.writer import Health, Writer
module.FLUSH_SECONDS, module.FLUSH_STEPS = 3600.0, 10**9
writer = Writer(Path(sys.argv[1]), 0, Health())
for step in range(100):
    writer.append("steps", attempt=1, step=step, loss=step / 3)
    writer.append("layers", attempt=1, step=step, layer=[0, 1], norm=[1.0, float(step)])
if sys.argv[2] == "11":
    import ctypes
    ctypes.string_at(0)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_rows_survive_the_process(empty_run: Path, how: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(empty_run), str(int(how))],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == -how
    ((rank, path),) = rings(empty_run)
    assert rank == 0
    with left_content(path) as content:
        assert content is not None
        found = left_tables(content, {})
    assert found["steps"].column("step").to_pylist() == list(range(100))
    assert found["steps"].column("loss").to_pylist() == [step / 3 for step in range(100)]
    assert found["layers"].num_rows == 200
