"""The one reader that all browser sessions share."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from hand_made import Trace, make_run

from app.queries import coverage
from app.source import Source
from sdc_guard.errors import RunFormatError, RunNotFound
from sdc_guard.store.ring import Ring, ring_folder
from sdc_guard.store.row_frames import row_frame
from sdc_guard.store.sealing import seal_run


def count(source: Source) -> int:
    found: int = source.reader().rows("SELECT count(*) FROM steps")[0][0]
    return found


def write_steps(run: Path, first: int, last: int) -> None:
    with Trace(run) as trace:
        trace.steps(first, last)


def test_news_is_seen_and_no_news_is_no_new_version(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run"))
    assert count(source) == 0
    version = source.version()
    assert source.version() == version
    write_steps(source.run, 1, 5)
    assert source.version() != version
    assert count(source) == 5
    seal_run(source.run, at_least=1)
    assert count(source) == 5


def test_a_run_may_come_later_and_go(tmp_path: Path) -> None:
    source = Source(tmp_path / "run")
    with pytest.raises(RunNotFound, match="no run folder there"):
        source.reader()
    make_run(source.run)
    assert count(source) == 0
    shutil.rmtree(source.run)
    with pytest.raises(RunNotFound):
        source.reader()


def test_another_run_in_the_same_folder_is_not_mixed_with_the_first(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run", starts=(1,)))
    write_steps(source.run, 1, 8)
    seal_run(source.run, at_least=1)
    assert count(source) == 8
    shutil.rmtree(source.run)
    make_run(source.run, starts=(1,))
    text = (source.run / "run.json").read_text()
    (source.run / "run.json").write_text(text.replace("1000000001.0", "1000000999.0"))
    write_steps(source.run, 1, 3)
    seal_run(source.run, at_least=1)  # under the name of the first run's seal
    assert count(source) == 3


def test_a_damaged_description_is_one_line(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run"))
    assert count(source) == 0
    (source.run / "run.json").write_text("{")
    with pytest.raises(RunFormatError, match=r"run\.json cannot be read"):
        source.reader()
    make_run(source.run)
    assert count(source) == 0


@pytest.mark.parametrize(
    ("trouble", "told"),
    [(duckdb.IOException("damaged"), RunFormatError), (OSError("gone"), OSError)],
)
def test_a_reader_that_failed_half_way_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception, told: type[Exception]
) -> None:
    source = Source(make_run(tmp_path / "run"))
    before = source.reader()

    def fail() -> None:
        raise trouble

    monkeypatch.setattr(before, "refresh", fail)
    write_steps(source.run, 1, 3)
    with pytest.raises(told):
        source.reader()
    assert source.reader() is not before
    assert count(source) == 3


def test_an_answer_of_a_search_is_news_and_what_is_being_written_is_none(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run"))
    write_steps(source.run, 1, 3)
    version = source.version()
    (source.run / "trace" / "steps" / "rank=00000" / ".seg-00000009.parquet.x.tmp").touch()
    (source.run / "bisect" / "0001").mkdir(parents=True)
    (source.run / "bisect" / "0001" / "journal.jsonl").touch()
    assert source.version() == version
    (source.run / "bisect" / "0001" / "result.json").touch()
    assert source.version() != version


def test_many_sessions_at_once_while_the_run_is_written_and_sealed(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run"))
    write_steps(source.run, 1, 1)
    last = 15

    def watch(_: int) -> list[int]:
        seen = [coverage(source.reader()).steps]
        while seen[-1] < last:
            seen.append(coverage(source.reader()).steps)
        return seen

    with ThreadPoolExecutor(5) as pool:
        sessions = [pool.submit(watch, number) for number in range(4)]
        for step in range(2, last + 1):
            write_steps(source.run, step, step)
            if step % 5 == 0:
                seal_run(source.run)
        for session in sessions:
            seen = session.result(timeout=60)
            assert seen == sorted(seen)


def test_what_a_killed_process_left_is_news(tmp_path: Path) -> None:
    source = Source(make_run(tmp_path / "run", starts=(1,)))
    write_steps(source.run, 1, 5)
    ring = Ring(ring_folder(source.run), 0, 0)
    ring.put(row_frame("steps", {"attempt": 1, "step": 6}, 1))
    assert count(source) == 5
    version = source.version()
    ring.put(row_frame("steps", {"attempt": 1, "step": 7}, 1))
    assert source.version() == version  # while it is in use
    ring.leave()
    assert source.version() != version
    assert count(source) == 7
