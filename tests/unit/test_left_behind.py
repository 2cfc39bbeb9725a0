"""What a killed process left in its ring: seen by every reader, published once, then gone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sdc_guard import RunReader
from sdc_guard.cli import main
from sdc_guard.store import left_behind
from sdc_guard.store.left_behind import fold
from sdc_guard.store.ring import Ring, ring_folder, rings
from sdc_guard.store.row_frames import row_frame
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import listing, rank_folder
from sdc_guard.store.writer import Health, Writer

STEPS = "SELECT step, loss, rank FROM steps ORDER BY rank, step"


def leave(run: Path, rank: int, steps: range, loss: float = 0.5) -> Path:
    """A ring as a killed process leaves it."""
    ring = Ring(ring_folder(run), rank, 0)
    for step in steps:
        ring.put(row_frame("steps", {"attempt": 1, "step": step, "loss": loss}, 1))
        layers = {"attempt": 1, "step": step, "layer": np.arange(2, dtype=np.int32), "norm": 1.0}
        ring.put(row_frame("layers", {**layers, "scope": "local"}, 2))
    ring.put(row_frame("events", {"attempt": 1, "step": steps[-1], "kind": "x", "detail": ""}, 1))
    ring.leave()
    return ring.path


def publish(run: Path, rank: int, steps: range, loss: float = 0.5) -> None:
    writer = Writer(run, rank, Health())
    for step in steps:
        writer.append("steps", attempt=1, step=step, loss=loss)
    writer.close()


def test_a_reader_shows_what_no_file_holds(empty_run: Path) -> None:
    publish(empty_run, 0, range(0, 6))
    publish(empty_run, 1, range(0, 2))
    path = leave(empty_run, 0, range(4, 9), loss=0.25)
    leave(empty_run, 3, range(1, 2))
    with RunReader(empty_run) as reader:
        expected = [(step, 0.5, 0) for step in range(6)]  # a published row stands
        expected += [(step, 0.25, 0) for step in range(6, 9)]
        expected += [(0, 0.5, 1), (1, 0.5, 1), (1, 0.5, 3)]
        assert reader.rows(STEPS) == expected
        assert reader.rows("SELECT count(*) FROM every.layers WHERE rank = 0") == [(10,)]
        assert reader.rows("SELECT kind FROM events WHERE rank = 0") == [("x",)]
        path.unlink()
        reader.refresh()
        assert reader.rows("SELECT max(step) FROM steps WHERE rank = 0") == [(5,)]
        assert reader.rows("SELECT count(*) FROM events WHERE rank = 0") == [(0,)]


def test_folded_rows_are_there_once_and_the_ring_is_gone(empty_run: Path) -> None:
    publish(empty_run, 0, range(0, 6))
    seal_run(empty_run, at_least=1)
    leave(empty_run, 0, range(4, 9))
    with RunReader(empty_run) as reader:
        before = reader.rows(STEPS)
        assert [step for step, _, _ in before] == list(range(9))
        assert fold(empty_run) == 3 + 10 + 1
        assert rings(empty_run) == []
        reader.refresh()
        assert reader.rows(STEPS) == before
        assert fold(empty_run) == 0
    seal_run(empty_run)
    with RunReader(empty_run) as reader:
        assert reader.rows(STEPS) == before
        assert reader.troubles() == []


def test_a_fold_that_was_killed_before_its_end_is_done_again(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    leave(empty_run, 0, range(5))
    real = left_behind.publish_rows

    def publish_and_die(*arguments: object, **options: object) -> int:
        real(*arguments, **options)  # type: ignore[arg-type]
        raise KilledError

    for table in ("steps", "layers", "events"):
        monkeypatch.setattr(left_behind, "publish_rows", publish_and_die)
        with pytest.raises(KilledError):
            fold(empty_run)
        assert listing(rank_folder(empty_run, table, 0)).segments.keys() == {0}
        with RunReader(empty_run) as reader:
            assert [step for step, _, _ in reader.rows(STEPS)] == list(range(5))
    monkeypatch.setattr(left_behind, "publish_rows", real)
    assert fold(empty_run) == 0
    assert rings(empty_run) == []
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*) FROM layers") == [(10,)]


def test_several_that_fold_at_once_fold_once(empty_run: Path) -> None:
    for rank in range(6):
        leave(empty_run, rank, range(20))
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(fold(empty_run))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) + fold(empty_run) == 6 * (20 + 40 + 1)
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*), count(DISTINCT (rank, step)) FROM steps") == [
            (120, 120)
        ]


def test_the_next_writer_of_the_rank_folds_its_own_rank_alone(empty_run: Path) -> None:
    leave(empty_run, 0, range(3))
    other = leave(empty_run, 1, range(3))
    writer = Writer(empty_run, 0, Health())
    writer.append("steps", attempt=2, step=1)
    writer.close()
    assert rings(empty_run) == [(1, other)]
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT attempt, step FROM every.steps WHERE rank = 0 ORDER BY ALL") == [
            (1, 0), (1, 1), (1, 2), (2, 1),
        ]  # fmt: skip


def test_what_is_in_use_is_neither_shown_nor_folded(empty_run: Path) -> None:
    writer = Writer(empty_run, 0, Health())
    ((_, path),) = rings(empty_run)
    content = path.read_bytes()
    writer.append("steps", attempt=1, step=1)
    assert path.read_bytes() != content
    assert fold(empty_run) == 0
    writer.close()


def test_compact_folds_them(empty_run: Path) -> None:
    leave(empty_run, 0, range(3))
    result = CliRunner().invoke(main, ["compact", str(empty_run)])
    assert result.exit_code == 0
    assert "10 rows recovered" in result.output
    assert rings(empty_run) == []
