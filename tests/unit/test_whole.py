"""The ranks' rows of a gradient put together: sharded, reduced, replicated, local."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard import RunReader
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.schema import TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path
from sdc_guard.store.writer import Health, Writer

COLUMNS = "norm, max_abs, mean_abs, nonfinite, zeros, scope, ranks, agree"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    layers = tuple(Layer(n, f"layer.{n}", (), (4,), "float32", 4) for n in range(3))
    RunFile("run", 4, layers, (Attempt(1, 0, 0.0),)).write(tmp_path)
    return tmp_path


def record(run: Path, rank: int, rows: Iterable[dict[str, Any]]) -> None:
    health = Health()
    writer = Writer(run, rank, health)
    for row in rows:
        writer.append("layers", attempt=1, **{"step": 7, "layer": 0, **row})
    writer.close()
    assert health.errors == 0, health.last_error


def whole(run: Path, what: str = COLUMNS, condition: str = "true") -> list[tuple[Any, ...]]:
    with RunReader(run) as reader:
        return reader.rows(
            f"SELECT {what} FROM whole_layers WHERE {condition} ORDER BY layer, attempt, step"
        )


def measures(norm: float | None, scope: str | None, **more: Any) -> dict[str, Any]:
    own = {
        "norm": norm,
        "max_abs": 0.5 if norm is None else norm / 2,
        "mean_abs": 0.125,
        "nonfinite": 1,
        "zeros": 2,
    }
    return {**own, "scope": scope, **more}


def test_shards_add_up(run: Path) -> None:
    for rank, norm in enumerate((0.5, 0.6, 0.4, 0.55)):
        record(run, rank, [measures(norm, "sharded", copies=1)])
    ((norm, *rest),) = whole(run)
    assert norm == pytest.approx(math.sqrt(0.25 + 0.36 + 0.16 + 0.3025), rel=1e-15)
    assert rest == [0.3, 0.5, 4, 8, "sharded", 4, None]
    with RunReader(run) as reader:
        assert reader.rows("SELECT norm FROM whole_steps") == [(pytest.approx(1.0725**0.5),)]


def test_copies_of_a_shard_count_once(run: Path) -> None:
    # two shards, each on two ranks, as in hybrid sharding
    for rank, norm in enumerate((3.0, 4.0, 3.0, 4.0)):
        record(run, rank, [measures(norm, "sharded", copies=2)])
    assert whole(run) == [(5.0, 2.0, 0.25, 2, 4, "sharded", 4, None)]


def test_replicas_are_compared_and_not_added(run: Path) -> None:
    for rank in (0, 1):
        record(run, rank, [measures(9.0 + rank, "local"), measures(2.0, "reduced")])
    assert whole(run) == [(2.0, 1.0, 0.125, 1, 2, "reduced", 2, True)]
    record(run, 2, [measures(2.0, "reduced", zeros=3)])
    assert whole(run) == [(2.0, 1.0, 0.125, 1, 2, "reduced", 3, False)]
    with RunReader(run) as reader:
        assert reader.rows("SELECT norm, layers, agree FROM whole_steps") == [(2.0, 1, False)]


def test_what_every_rank_of_tensor_parallel_holds_whole_counts_once(run: Path) -> None:
    for rank in (0, 1):
        record(
            run,
            rank,
            [
                measures(3.0, "replicated", layer=0),
                measures(4.0 * 0.5**0.5, "sharded", layer=1, copies=1),
            ],
        )
    assert [row[:1] + row[5:] for row in whole(run)] == [
        (3.0, "replicated", 2, True),
        (pytest.approx(4.0), "sharded", 2, None),
    ]
    with RunReader(run) as reader:  # 5, and not the √(9 + 9 + 16) of a plain sum over ranks
        ((norm, layers, ranks, agree),) = reader.rows(
            "SELECT norm, layers, ranks, agree FROM whole_steps"
        )
    assert (norm, layers, ranks, agree) == (pytest.approx(5.0), 2, 2, True)


def test_local_rows_without_a_reduction(run: Path) -> None:
    record(run, 0, [measures(2.0, "local"), measures(1.0, None, step=8)])
    assert whole(run, condition="step = 7") == [(2.0, 1.0, 0.125, 1, 2, "local", 1, None)]
    assert whole(run, "norm, scope, ranks", "step = 8") == [(1.0, "local", 1)]
    record(run, 1, [measures(5.0, "local"), measures(6.0, "partial", step=9)])
    assert whole(run, "norm, ranks, agree", "step = 7") == [(2.0, 2, None)]
    assert whole(run, "norm, scope, agree", "step = 9") == [(6.0, "partial", None)]


def test_a_missing_or_infinite_value_stays_one(run: Path) -> None:
    record(run, 0, [measures(math.nan, "sharded"), measures(None, "reduced", layer=1)])
    record(run, 1, [measures(3.0, "sharded"), measures(4.0, "reduced", layer=1)])
    nan, first = whole(run, "norm, max_abs, agree")
    assert math.isnan(nan[0])
    assert math.isnan(nan[1])
    assert first == (None, 0.5, False)
    record(run, 2, [measures(1e300, "sharded", layer=2)])
    assert whole(run, "norm", "layer = 2") == [(math.inf,)]


def test_attempts_are_apart(run: Path) -> None:
    RunFile("run", 1, (), (Attempt(1, 0, 0.0), Attempt(2, 8, 1.0))).write(run)
    record(run, 0, [measures(1.0, "local"), measures(1.0, "local", step=8)])
    writer = Writer(run, 0, Health())
    writer.append("layers", attempt=2, step=8, **measures(2.0, "local"), layer=0)
    writer.close()
    assert whole(run, "attempt, step, norm") == [(1, 7, 1.0), (2, 8, 2.0)]


@given(
    values=st.lists(st.floats(0.001953125, 1e6, width=32), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    copies=st.integers(1, 3),
)
def test_any_way_to_shard_gives_the_same_whole(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], cuts: list[int], copies: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(run)
    places = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    shards = [np.array(values[a:b]) for a, b in itertools.pairwise(places)]
    for number, shard in enumerate(shards):
        for copy in range(copies):
            row = {
                "norm": float(np.linalg.norm(shard)),
                "max_abs": float(shard.max()),
                "mean_abs": float(shard.sum()) / len(values),
                "nonfinite": 0,
                "zeros": len(shard),
                "scope": "sharded",
                "copies": copies,
            }
            record(run, number * copies + copy, [row])
    ((norm, largest, mean, nonfinite, zeros, _, ranks, _),) = whole(run)
    assert norm == pytest.approx(np.linalg.norm(values), rel=1e-12)
    assert mean == pytest.approx(np.mean(values), rel=1e-12)
    assert (largest, nonfinite, zeros) == (max(values), 0, len(values))
    assert ranks == len(shards) * copies


def test_segments_of_before_there_were_copies(run: Path) -> None:
    old = TABLES["layers"].remove(TABLES["layers"].get_field_index("copies"))
    folder = rank_folder(run, "layers", 0)
    folder.mkdir(parents=True)
    row = {**measures(2.0, "local"), "attempt": 1, "step": 7, "layer": 0}
    segment_path(folder, 0).write_bytes(encode(pa.Table.from_pylist([row], old)))
    assert "copies" not in pq.read_schema(segment_path(folder, 0)).names
    assert whole(run, "step, norm") == [(7, 2.0)]
    record(run, 0, [measures(3.0, "sharded", step=8, copies=4)])
    for sealed in (False, True):
        if sealed:
            assert seal_run(run)
            for segment in folder.glob("seg-*"):
                segment.unlink()
        with RunReader(run) as reader:
            rows = reader.rows("SELECT step, norm, copies FROM layers ORDER BY step")
        assert rows == [(7, 2.0, None), (8, 3.0, 4)]
        assert whole(run, "step, norm", "step = 8") == [(8, 1.5)]
