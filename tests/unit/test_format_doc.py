"""docs/format.md says what is on disk, and its examples run."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from segment_writers import SegmentWriter, age

from sdc_guard import RunReader
from sdc_guard.store.contents import Part
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.schema import FORMAT_VERSION, TABLES
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.sealing_plan import NEIGHBOURS, ROWS_PER_SEAL, ROWS_WORTH_A_SEAL

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
TABLE_TEXTS = re.split(r"\n(?=`\w+`, a row)", TEXT.split("## Tables")[1].split("\n## ")[0])


def columns(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)


def test_every_table_and_column_has_its_type() -> None:
    common, *texts = TABLE_TEXTS
    told = {re.match(r"`(\w+)`", text)[1]: columns(common) + columns(text) for text in texts}  # type: ignore[index]
    assert told == {
        name: [(field.name, str(field.type)) for field in schema] for name, schema in TABLES.items()
    }


def test_run_json_and_contents_and_numbers() -> None:
    run_json = TEXT.split("## run.json")[1].split("## Tables")[0]
    assert set(re.findall(r"^\| `(\w+)`", run_json, re.MULTILINE)) == {
        field.name for field in fields(RunFile)
    }
    for described in (Layer, Attempt):
        assert all(f"`{field.name}`" in run_json for field in fields(described))
    contents = TEXT.split("| `contents` |")[1].splitlines()[0]
    assert re.findall(r"`(\w+)`", contents) == ["tier", *(field.name for field in fields(Part))]
    assert f"the version of the format: {FORMAT_VERSION}" in TEXT
    assert f"{ROWS_WORTH_A_SEAL:,} rows" in TEXT
    assert f"{NEIGHBOURS} neighbours" in TEXT
    assert f"{ROWS_PER_SEAL // 10**6} million rows" in TEXT


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/pretrain below the working folder: seals, what they cover, and newer segments."""
    folder = tmp_path / "runs" / "pretrain"
    folder.mkdir(parents=True)
    layers = tuple(Layer(n, f"block.{n}", (), (4,), "float32", 4) for n in range(3))
    RunFile("pretrain", 1, layers, (Attempt(1, 0, 0.0),)).write(folder)
    writer = SegmentWriter(folder, "w")
    for first in range(0, 70, 10):
        writer.layers(first, first + 9, 3)
        if first == 20:
            seal_run(folder)
            age(folder)
            seal_run(folder)
        if first == 50:
            seal_run(folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_examples_run_and_say_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in (run / "trace" / "layers" / "rank=00000").iterdir())
    assert len([name for name in names if name.startswith("seal-")]) == 2
    assert len([name for name in names if name.startswith("seg-")]) == 4
    scope: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(example, scope)
    found = scope["rows"].select("step, layer, norm").order("step, layer").fetchall()  # type: ignore[attr-defined]
    assert found == [(s, n, s + n / 1000) for s in range(70) for n in range(3)]
    printed = capsys.readouterr().out
    assert "│     2 │    70 │" in printed
    assert "seg-00000006.parquet 30" in printed
    assert "b'sdc_guard.rows_before': b'180'" in printed
    assert "[(210,)]" in printed


def test_a_run_of_before_writers_were_named_is_read_like_any_other(run: Path) -> None:
    old = SegmentWriter(run, None)
    for first in (70, 80):
        old.layers(first, first + 9, 3)
    with RunReader(run) as reader:
        assert reader.rows("SELECT count(*), max(step) FROM layers") == [(270, 89)]
        assert reader.troubles() == []
        assert {part.writer for part in reader.writers("layers")[0]} == {"w", None}
    seal_run(run)
    with RunReader(run) as reader:
        assert reader.rows("SELECT count(*), max(step) FROM layers") == [(270, 89)]


def test_a_column_that_a_newer_version_adds_is_no_obstacle(run: Path) -> None:
    from sdc_guard.store.segment_file import encode
    from sdc_guard.store.segments import rank_folder, segment_path

    content = json.loads((run / "run.json").read_text())
    assert content["format"] == 1
    folder = rank_folder(run, "layers", 0)
    newer = pa.table({"attempt": pa.array([1], pa.int32()), "step": [70], "new": ["x"]})
    segment_path(folder, 7).write_bytes(encode(newer))
    with RunReader(run) as reader:
        assert reader.rows("SELECT step, layer FROM layers WHERE step > 68 ORDER BY ALL") == [
            (69, 0), (69, 1), (69, 2), (70, None),
        ]  # fmt: skip
    seal_run(run)
    assert segment_path(folder, 7).exists()  # what is not known here is not lost by sealing
    with RunReader(run) as reader:
        assert reader.rows("SELECT count(*) FROM layers WHERE step = 70") == [(1,)]
        assert reader.troubles() == []
