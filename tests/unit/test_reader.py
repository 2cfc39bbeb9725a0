"""The reader: damaged files cost only themselves, threads and odd folders do not matter."""

from __future__ import annotations

import math
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sdc_guard import RunReader
from sdc_guard.errors import UsageError
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import rank_folder, segment_path
from sdc_guard.store.writer import Health, Writer

STEPS_EACH = 40


def publish(run: Path, segments: int, *, first: int = 0, rank: int = 0) -> None:
    """`segments` segments of 40 steps each, the loss of step s being s²."""
    for number in range(segments):
        start = first + number * STEPS_EACH
        steps = np.arange(start, start + STEPS_EACH)
        writer = Writer(run, rank, Health())
        writer.append("steps", attempt=1, step=steps, loss=steps.astype(float) ** 2)
        writer.close()


def steps_of(reader: RunReader) -> set[int]:
    found = reader.rows("SELECT step, loss FROM steps")
    assert all(loss == step * step for step, loss in found)
    assert len({step for step, _ in found}) == len(found)
    return {step for step, _ in found}


def expected(*numbers: int) -> set[int]:
    return {n * STEPS_EACH + i for n in numbers for i in range(STEPS_EACH)}


def segment(run: Path, number: int) -> Path:
    return segment_path(rank_folder(run, "steps", 0), number)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, place: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_run_without_a_trace_has_empty_tables(empty_run: Path) -> None:
    with RunReader(empty_run) as reader:
        for table in TABLES:
            assert reader.rows(f"SELECT count(*) FROM {table}") == [(0,)]
            names = reader.arrow(f"SELECT * FROM {table}").column_names
            assert names == [*TABLES[table].names, "rank"]
        assert reader.rows("SELECT * FROM layer_names") == [(0, "w", 6)]


def test_a_path_given_as_text(empty_run: Path) -> None:
    publish(empty_run, 1)
    assert steps_of(RunReader(str(empty_run))) == expected(0)


@pytest.mark.parametrize("name", ["exp[1]", "it's", "a*b", "**", "[", "{x,y} z", "ß", "a;b"])
def test_folders_with_letters_that_mean_something_to_sql(tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    run.mkdir()
    RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(run)
    decoy = tmp_path / "zz"
    decoy.mkdir()
    RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(decoy)
    publish(decoy, 1, first=9 * STEPS_EACH)
    publish(run, 2)
    assert steps_of(RunReader(run)) == expected(0, 1)
    seal_run(run)
    publish(run, 1, first=2 * STEPS_EACH)
    assert steps_of(RunReader(run)) == expected(0, 1, 2)


@pytest.mark.parametrize("size", [0, 4, 10, 200, -8, -1])
def test_a_truncated_segment_costs_itself(empty_run: Path, size: int) -> None:
    publish(empty_run, 4)
    bad = segment(empty_run, 2)
    cut(bad, size)
    with RunReader(empty_run) as reader:
        assert steps_of(reader) == expected(0, 1, 3)
        assert list(reader.damaged) == [bad]
        assert reader.damaged[bad]
        assert "\n" not in reader.damaged[bad]
    publish(empty_run, 1, first=4 * STEPS_EACH)
    with RunReader(empty_run) as reader:
        assert steps_of(reader) == expected(0, 1, 3, 4)


def test_a_flipped_bit_anywhere_in_a_segment_is_noticed(empty_run: Path, seed: int) -> None:
    publish(empty_run, 3)
    bad = segment(empty_run, 1)
    sound = bad.read_bytes()
    random_ = random.Random(seed)
    places = [0, len(sound) - 1, len(sound) - 8, len(sound) - 5, sound.index(b"SDCG")]
    places += [random_.randrange(len(sound)) for _ in range(25)]
    for place in places:
        flip(bad, place, random_.randrange(8))
        with RunReader(empty_run) as reader:
            assert steps_of(reader) == expected(0, 2)
            assert list(reader.damaged) == [bad]
        bad.write_bytes(sound)


def test_a_segment_is_plain_parquet(empty_run: Path) -> None:
    publish(empty_run, 1)
    table = pq.read_table(segment(empty_run, 0), partitioning=None)
    assert table.schema.equals(TABLES["steps"])
    assert table["loss"].to_pylist() == [float(s * s) for s in range(STEPS_EACH)]


@pytest.mark.parametrize("what", ["empty", "short", "half", "last", "garbage", "other"])
@pytest.mark.parametrize("segments_there", [True, False])
def test_a_damaged_seal_costs_itself(empty_run: Path, what: str, segments_there: bool) -> None:
    publish(empty_run, 2)
    (seal,) = seal_run(empty_run)
    size = seal.stat().st_size
    if not segments_there:
        for number in (0, 1):
            segment(empty_run, number).unlink()
    publish(empty_run, 2, first=2 * STEPS_EACH)
    (second,) = seal_run(empty_run)
    for number in (2, 3):
        segment(empty_run, number).unlink()
    publish(empty_run, 1, first=4 * STEPS_EACH)
    if what == "garbage":
        seal.write_bytes(np.random.default_rng(1).bytes(size))
    elif what == "other":
        seal.write_bytes((empty_run / "run.json").read_bytes() * 100)
    else:
        cut(seal, {"empty": 0, "short": 100, "half": size // 2, "last": -1}[what])
    with RunReader(empty_run) as reader:
        sound = (0, 1, 2, 3, 4) if segments_there else (2, 3, 4)
        assert steps_of(reader) == expected(*sound)
        assert steps_of(reader) == expected(*sound)
        assert list(reader.damaged) == [seal]
        assert second not in reader.damaged
        assert "\n" not in reader.damaged[seal]


@pytest.mark.parametrize("segments_there", [True, False])
def test_a_flipped_bit_in_a_seal_is_never_read_as_a_value(
    empty_run: Path, seed: int, segments_there: bool
) -> None:
    publish(empty_run, 2)
    (seal,) = seal_run(empty_run)
    if not segments_there:
        for number in (0, 1):
            segment(empty_run, number).unlink()
    publish(empty_run, 1, first=2 * STEPS_EACH)
    sound = seal.read_bytes()
    random_ = random.Random(seed)
    noticed = 0
    for _ in range(20):
        flip(seal, random_.randrange(len(sound)), random_.randrange(8))
        with RunReader(empty_run) as reader:
            found = steps_of(reader)
        if seal in reader.damaged:
            noticed += 1
            assert found == (expected(0, 1, 2) if segments_there else expected(2))
        else:
            assert found == expected(0, 1, 2)
        seal.write_bytes(sound)
    assert noticed > 2


def test_damage_that_comes_while_the_reader_is_open(empty_run: Path) -> None:
    publish(empty_run, 3)
    with RunReader(empty_run) as reader:
        cut(segment(empty_run, 1), 30)
        assert steps_of(reader) == expected(0, 2)
        assert list(reader.damaged) == [segment(empty_run, 1)]


def test_a_reader_lives_with_the_writer(empty_run: Path) -> None:
    with RunReader(empty_run) as reader:
        for number in range(4):
            publish(empty_run, 1, first=number * STEPS_EACH)
            if number == 2:
                seal_run(empty_run)
            reader.refresh()
            assert steps_of(reader) == expected(*range(number + 1))


def test_ranks_are_a_column(empty_run: Path) -> None:
    publish(empty_run, 1)
    publish(empty_run, 2, rank=11)
    with RunReader(empty_run) as reader:
        found = reader.rows("SELECT rank, count(*) FROM steps GROUP BY rank ORDER BY rank")
        assert found == [(0, STEPS_EACH), (11, 2 * STEPS_EACH)]


@pytest.mark.parametrize(
    "query",
    ["SELEC 1", "SELECT * FROM nowhere", "SELECT nothing FROM steps", "", "-- nothing",
     "SELECT * FROM read_csv('/nowhere.csv')", "SELECT 1 WHERE $missing", "SELECT 'x'::INTEGER",
     "SELECT error('own')"],
)  # fmt: skip
def test_wrong_sql_is_one_line(empty_run: Path, query: str) -> None:
    publish(empty_run, 1)
    with RunReader(empty_run) as reader:
        for ask in (reader.rows, reader.arrow):
            with pytest.raises(UsageError) as caught:
                ask(query)
            assert "\n" not in str(caught.value)
        assert steps_of(reader) == expected(0)
        assert reader.damaged == {}


def test_parameters(empty_run: Path) -> None:
    publish(empty_run, 1)
    with RunReader(empty_run) as reader:
        query = "SELECT loss FROM steps WHERE step = $step"
        assert reader.rows(query, {"step": 3}) == [(9.0,)]
        assert reader.arrow(query, {"step": 3}).to_pylist() == [{"loss": 9.0}]


def test_nan_and_infinity_stay_what_they_are(empty_run: Path) -> None:
    writer = Writer(empty_run, 0, Health())
    writer.append("steps", attempt=1, step=[1, 2, 3], loss=[math.nan, math.inf, 1.0])
    writer.close()
    with RunReader(empty_run) as reader:
        assert reader.rows("SELECT count(*) FROM steps WHERE isfinite(loss)") == [(1,)]
        assert reader.rows("SELECT count(*) FROM steps WHERE isnan(loss)") == [(1,)]


def test_another_run_can_be_attached_again_and_again(empty_run: Path, tmp_path: Path) -> None:
    publish(empty_run, 2)
    seal_run(empty_run)
    other = tmp_path / "other"
    other.mkdir()
    layers = (Layer(5, "x", (), (1,), "float32", 1),)
    RunFile("other", 1, layers, (Attempt(1, 0, 0.0),)).write(other)
    publish(other, 1)
    with RunReader(empty_run) as one, RunReader(other) as two:
        one.attach("replay", two)
        assert one.rows("SELECT count(*) FROM replay.steps") == [(STEPS_EACH,)]
        publish(other, 1, first=STEPS_EACH)
        two.refresh()
        one.attach("replay", two)
        assert one.rows("SELECT count(*) FROM replay.steps") == [(2 * STEPS_EACH,)]
        assert one.rows("SELECT * FROM replay.layer_names") == [(5, "x", 1)]
        assert steps_of(one) == expected(0, 1)


def test_two_readers_of_one_process_share_a_seal(empty_run: Path) -> None:
    publish(empty_run, 2)
    seal_run(empty_run)
    with RunReader(empty_run) as one, RunReader(empty_run) as two:
        assert steps_of(one) == steps_of(two) == expected(0, 1)


def test_eight_threads_and_refreshes_on_one_reader(empty_run: Path) -> None:
    publish(empty_run, 3)
    seal_run(empty_run)
    publish(empty_run, 2, first=3 * STEPS_EACH)
    problems: list[Any] = []
    with RunReader(empty_run) as reader:

        def ask(thread: int) -> None:
            for number in range(25):
                try:
                    step = (thread * 25 + number) % (5 * STEPS_EACH)
                    found = reader.rows(
                        "SELECT loss, name FROM steps, layer_names WHERE step = $step",
                        {"step": step},
                    )
                    if found != [(float(step * step), "w")]:
                        problems.append((step, found))
                    count = reader.arrow("SELECT count(*) AS n FROM steps").to_pylist()
                    if count[0]["n"] < 5 * STEPS_EACH:
                        problems.append(count)
                except Exception as error:  # noqa: BLE001 - because a thread must report, not die
                    problems.append(error)

        def refresh() -> None:
            for number in range(8):
                try:
                    publish(empty_run, 1, first=(5 + number) * STEPS_EACH)
                    if number % 3 == 2:
                        seal_run(empty_run)
                    reader.refresh()
                except Exception as error:  # noqa: BLE001 - because a thread must report, not die
                    problems.append(error)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        threads += [threading.Thread(target=refresh) for _ in range(1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert steps_of(reader) == expected(*range(13))


def test_refreshing_from_several_threads(empty_run: Path) -> None:
    publish(empty_run, 2)
    problems: list[BaseException] = []
    with RunReader(empty_run) as reader:

        def refresh() -> None:
            try:
                for _ in range(10):
                    reader.refresh()
            except Exception as error:  # noqa: BLE001 - because a thread must report, not die
                problems.append(error)

        threads = [threading.Thread(target=refresh) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert steps_of(reader) == expected(0, 1)


def test_the_working_folder_may_change(
    empty_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(empty_run, 1)
    monkeypatch.chdir(empty_run.parent)
    with RunReader(Path(empty_run.name)) as reader:
        os.chdir(tmp_path.root)
        assert steps_of(reader) == expected(0)


@pytest.mark.parametrize("above", ["plain", "step=500", "rank=7/loss=2"])
def test_names_of_folders_above_are_no_columns(tmp_path: Path, above: str) -> None:
    """DuckDB takes `step=500` in a path for a column, and prefers it to the file's own."""
    run = tmp_path / above / "run"
    run.mkdir(parents=True)
    RunFile("run", 3, ()).with_attempt(Attempt(1, 0, 0.0)).write(run)
    for rank in (0, 2, 11):
        writer = Writer(run, rank, Health())
        for step in range(4):
            writer.append("steps", attempt=1, step=step, loss=float(rank))
        writer.close()
    with RunReader(run) as reader:
        expected = [(rank, step, float(rank)) for rank in (0, 2, 11) for step in range(4)]
        assert reader.rows("SELECT rank, step, loss FROM steps ORDER BY ALL") == expected
        assert reader.rows("SELECT sum(loss) FROM steps WHERE rank = 11") == [(44.0,)]
        types = dict(reader.rows("SELECT column_name, column_type FROM (DESCRIBE steps)"))
        assert types["rank"] == "INTEGER"
