"""The writer thread: what is acknowledged is there, and trouble stays away from the training."""

from __future__ import annotations

import errno
import json
import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdc_guard import RunReader
from sdc_guard.store import publishing
from sdc_guard.store import writer as writer_module
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import listing, rank_folder, segment_path
from sdc_guard.store.writer import Health, Writer


@pytest.fixture
def run(empty_run: Path) -> Path:
    return empty_run


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def writer(run: Path, health: Health) -> Iterator[Writer]:
    made = Writer(run, 0, health)
    yield made
    made.close()


def steps_in(run: Path) -> list[int]:
    with RunReader(run) as reader:
        return [row[0] for row in reader.rows("SELECT step FROM steps ORDER BY step")]


def put(writer: Writer, *steps: int) -> None:
    for step in steps:
        writer.append("steps", attempt=1, step=step)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A disk that is full while disk["full"] is true."""
    state: dict[str, Any] = {"full": False, "refused": 0}
    real = publishing.publish

    def publish(target: Path, write: Any, **options: Any) -> None:
        if state["full"]:
            state["refused"] += 1
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(target, write, **options)

    monkeypatch.setattr(publishing, "publish", publish)
    return state


def test_rows_come_back_in_value_and_type(run: Path, writer: Writer) -> None:
    low, high = -(2**63), 2**63 - 1
    writer.append(
        "steps", attempt=1, step=low, time=1.5, loss=math.nan, lr=None, grad_norm=math.inf,
        loss_scale=-math.inf, skipped=True, accumulation=2**31 - 1, batch_hash=high,
        step_seconds=5e-324, tokens=0,
    )  # fmt: skip
    writer.append("steps", attempt=1, step=high, loss=float(np.float32(0.1)), lr=-0.0)
    writer.append("events", attempt=1, step=3, kind="start", detail="ß \"quoted\"\n'two'\x00")
    assert writer.flush()
    with RunReader(run) as reader:
        (row, second) = reader.rows("SELECT * EXCLUDE rank FROM steps ORDER BY step")
        assert row[:3] == (1, low, 1.5)
        assert math.isnan(row[3])
        assert row[4] is None
        assert row[5:] == (math.inf, -math.inf, True, 2**31 - 1, high, 5e-324, 0)
        assert second[1] == high
        assert second[3] == 0.10000000149011612
        assert math.copysign(1, second[4]) == -1
        assert second[7] is None
        detail = reader.rows("SELECT detail, rank FROM events")
        assert detail == [("ß \"quoted\"\n'two'\x00", 0)]
        types = dict(reader.rows("SELECT column_name, column_type FROM (DESCRIBE steps)"))
        assert types["step"] == "BIGINT"
        assert types["loss"] == "DOUBLE"
        assert types["skipped"] == "BOOLEAN"
        assert types["attempt"] == "INTEGER"


def test_arrays_and_scalars_make_rows_together(run: Path, writer: Writer) -> None:
    hashes = np.array([[1, 2, 3], [-1, 2**62, -(2**63)]], dtype=np.int64)
    writer.append(
        "digests", attempt=np.int32(1), step=np.int64(4), phase="after",
        kind=["param", "grad"], layer=np.array([0, 1], dtype=np.int64),
        h=hashes[:, 0], s1=hashes[:, 1], s2=hashes[:, 2],
    )  # fmt: skip
    writer.append("layers", attempt=1, step=4, layer=np.array([], dtype=np.int32))
    writer.append("layers", attempt=1, step=5, layer=[7], norm=np.float32(0.5), zeros=np.array(3))
    assert writer.flush()
    with RunReader(run) as reader:
        found = reader.rows("SELECT * EXCLUDE rank FROM digests ORDER BY layer")
        assert found == [
            (1, 4, "after", "param", 0, 1, 2, 3),
            (1, 4, "after", "grad", 1, -1, 2**62, -(2**63)),
        ]
        assert reader.rows("SELECT layer, norm, zeros, scope FROM layers") == [(7, 0.5, 3, None)]


def test_every_table_takes_a_row(run: Path, writer: Writer, health: Health) -> None:
    for table in TABLES:
        writer.append(table, attempt=1, step=1)
    assert writer.flush()
    assert (health.written, health.dropped, health.errors) == (len(TABLES), 0, 0)
    with RunReader(run) as reader:
        for table in TABLES:
            assert reader.rows(f"SELECT attempt, step FROM {table}") == [(1, 1)]


def test_numbers_go_on_over_restarts_and_seals(run: Path) -> None:
    folder = rank_folder(run, "steps", 0)
    for start in range(3):
        writer = Writer(run, 0, Health())
        put(writer, start)
        writer.close()
    assert sorted(listing(folder).segments) == [0, 1, 2]
    seal_run(run)
    for path in listing(folder).segments.values():
        path.unlink()
    writer = Writer(run, 0, Health())
    put(writer, 3)
    writer.close()
    assert sorted(listing(folder).segments) == [3]
    assert steps_in(run) == [0, 1, 2, 3]


def test_a_full_disk_costs_nothing_but_time(
    run: Path,
    writer: Writer,
    health: Health,
    disk: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk["full"] = True
    put(writer, 1, 2)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        assert not writer.flush()
        put(writer, 3)
        assert not writer.flush()
    assert health.errors >= 2
    assert health.written == 0
    assert "No space left" in health.last_error
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert "\n" not in told[0]
    assert steps_in(run) == []
    disk["full"] = False
    put(writer, 4)
    assert writer.flush()
    assert steps_in(run) == [1, 2, 3, 4]
    assert (health.written, health.dropped) == (5, 0)
    with RunReader(run) as reader:  # that it was full is known afterwards
        ((attempt, step, kind, detail),) = reader.rows("FROM events SELECT * EXCLUDE rank")
    assert (attempt, step, kind) == (1, 4, "recorder trouble")
    assert "No space left" in json.loads(detail)["error"]
    put(writer, 5)
    assert writer.flush()
    assert health.written == 6


def test_a_file_system_that_refuses_half_way(
    run: Path, writer: Writer, health: Health, no_space: Any
) -> None:
    put(writer, *range(10))
    with no_space(300):
        assert not writer.flush()
    assert health.errors == 1
    assert list((run / "trace" / "steps").rglob("*.*")) == []
    assert writer.flush()
    assert steps_in(run) == list(range(10))


def test_a_folder_that_cannot_be_made(run: Path, writer: Writer, health: Health) -> None:
    (run / "trace" / "steps").write_text("a file where the folder should be")
    put(writer, 1)
    assert not writer.flush()
    assert health.errors == 1
    (run / "trace" / "steps").unlink()
    assert writer.flush()
    assert steps_in(run) == [1]


def test_only_the_table_in_trouble_waits(run: Path, writer: Writer, health: Health) -> None:
    rank_folder(run, "events", 0).parent.mkdir(parents=True)
    rank_folder(run, "events", 0).write_text("in the way")
    writer.append("events", attempt=1, step=1, kind="start", detail="{}")
    put(writer, 1)
    assert not writer.flush()
    assert steps_in(run) == [1]
    assert health.written == 1


@pytest.mark.parametrize(
    "columns",
    [
        {"step": "three"},
        {"step": 2**63},
        {"step": 2, "attempt": 2**40},
        {"step": [1, 2], "loss": [0.5]},
        {"step": 1, "colour": "red"},
        pytest.param({"step": 1, "loss": object()}, id="an object"),
    ],
    ids=str,
)
def test_a_row_that_fits_no_table_blocks_nobody(
    run: Path, writer: Writer, health: Health, columns: dict[str, Any]
) -> None:
    put(writer, 10)
    writer.append("steps", **({"attempt": 1} | columns))
    put(writer, 11)
    assert writer.flush()
    assert steps_in(run) == [10, 11]
    assert health.dropped >= 1
    assert health.errors == 1


def test_an_unknown_table_blocks_nobody(run: Path, writer: Writer, health: Health) -> None:
    writer.append("nonsense", step=1)
    put(writer, 1)
    assert writer.flush()
    assert (health.written, health.dropped) == (1, 1)


def test_what_the_queue_cannot_hold_is_counted(
    run: Path, health: Health, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_LIMIT", 3)
    held, entered = threading.Event(), threading.Event()
    real = publishing.publish

    def slow(target: Path, write: Any, **options: Any) -> None:
        entered.set()
        held.wait(30)
        real(target, write, **options)

    monkeypatch.setattr(publishing, "publish", slow)
    writer = Writer(run, 0, health)
    put(writer, 0)
    writer.nudge()
    assert entered.wait(30)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        put(writer, *range(1, 11))
        writer.append("layers", attempt=1, step=1, layer=np.arange(5, dtype=np.int32))
        assert not writer.flush(timeout=0.01)
        writer.nudge()
    assert health.dropped == 7 + 5
    assert len(caplog.records) == 1
    assert "rows dropped" in caplog.records[0].getMessage()
    held.set()
    writer.close()
    assert steps_in(run) == [0, 1, 2, 3]
    assert health.written == 4


def test_a_backlog_has_a_bound(
    run: Path, health: Health, disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BACKLOG_LIMIT", 4_000)
    disk["full"] = True
    writer = Writer(run, 0, health)
    for step in range(10):
        writer.append("layers", attempt=1, step=step, layer=np.arange(50, dtype=np.int32))
    assert not writer.flush()
    disk["full"] = False
    assert writer.flush()
    assert 0 < health.written - 1 < 500
    assert health.written - 1 + health.dropped == 500  # one is the event
    writer.append("layers", attempt=1, step=10, layer=np.arange(20, dtype=np.int32))
    assert writer.flush()
    writer.close()
    with RunReader(run) as reader:  # there was room again
        assert reader.rows("SELECT count(*) FROM layers WHERE step = 10") == [(20,)]


def test_rows_that_the_disk_refuses_to_the_end_are_counted(
    run: Path, health: Health, disk: dict[str, Any]
) -> None:
    disk["full"] = True
    writer = Writer(run, 0, health)
    put(writer, 1, 2, 3)
    writer.close()
    assert (health.written, health.dropped) == (0, 3)
    assert "3 rows dropped" in health.last_error
    assert not writer.flush()


def test_after_closing(run: Path, health: Health) -> None:
    writer = Writer(run, 0, health)
    put(writer, 1)
    writer.close()
    writer.close()
    put(writer, 2)
    writer.nudge()
    assert writer.flush(timeout=0.01)
    assert (health.written, health.dropped) == (1, 1)
    assert steps_in(run) == [1]


@pytest.mark.parametrize(("seconds", "steps"), [(3600.0, 5), (0.02, 10**6)])
def test_rows_are_published_without_being_asked(
    run: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int
) -> None:
    published = threading.Event()
    real = publishing.publish

    def publish(target: Path, write: Any, **options: Any) -> None:
        real(target, write, **options)
        published.set()

    monkeypatch.setattr(publishing, "publish", publish)
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", seconds)
    monkeypatch.setattr(writer_module, "FLUSH_STEPS", steps)
    writer = Writer(run, 0, Health())
    put(writer, *range(5))
    assert published.wait(30)
    writer.close()
    assert steps_in(run) == list(range(5))


def test_another_process_that_writes_for_this_rank_loses_nothing(run: Path) -> None:
    one, two = Writer(run, 0, Health()), Writer(run, 0, Health())
    for step in range(0, 20, 2):
        put(one, step)
        one.nudge()
        put(two, step + 1)
        two.nudge()
    assert one.flush()
    assert two.flush()
    one.close()
    two.close()
    assert steps_in(run) == list(range(20))


def test_a_taken_number_is_passed_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = rank_folder(run, "steps", 0)
    first = Writer(run, 0, Health())
    put(first, 1)
    first.close()
    content = segment_path(folder, 0).read_bytes()
    monkeypatch.setattr(publishing, "next_number", lambda _: 0)
    second = Writer(run, 0, Health())
    put(second, 2)
    second.close()
    assert segment_path(folder, 0).read_bytes() == content
    assert steps_in(run) == [1, 2]


def test_a_folder_is_searched_for_its_newest_number_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds hundreds of names, and each second has a segment of several tables."""
    searched: list[Path] = []
    real = publishing.next_number
    monkeypatch.setattr(publishing, "next_number", lambda f: searched.append(f) or real(f))
    writer = Writer(run, 0, Health())
    for step in range(5):
        put(writer, step)
        assert writer.flush()
    # somebody else takes the number that would come next
    folder = rank_folder(run, "steps", 0)
    taken = segment_path(folder, 5)
    taken.write_bytes(segment_path(folder, 4).read_bytes())
    put(writer, 5)
    writer.close()
    assert searched == [folder]
    assert sorted(path.name for path in folder.glob("seg-*")) == [
        segment_path(folder, number).name for number in range(7)
    ]
    assert steps_in(run) == [0, 1, 2, 3, 4, 4, 5]


def test_an_append_takes_anything(run: Path, writer: Writer) -> None:
    writer.append("steps")
    writer.append("steps", step=np.array(3), loss=())
    writer.append("", **{"": None})
    assert writer.flush()
    assert steps_in(run) == [None]
