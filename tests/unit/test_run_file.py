"""run.json: round trip, and what is said of a folder that is none or a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sdc_guard import RunReader
from sdc_guard.errors import RunFormatError, RunNotFound
from sdc_guard.store.run_file import Attempt, Layer, RunFile, merge_layers
from sdc_guard.store.schema import FORMAT_VERSION


def layer(number: int, name: str, shape: tuple[int, ...] = (2,), dtype: str = "float32") -> Layer:
    return Layer(number, name, (), shape, dtype, 2)


def test_round_trip(tmp_path: Path) -> None:
    made = RunFile(
        name="pre träin",
        world_size=4,
        layers=(Layer(0, "emb", ("head",), (3, 2), "bfloat16", 6), layer(1, "b", ())),
        attempts=(Attempt(1, 0, 1.25, {"python": "3.11", "flags": {"foreach": None}}),),
        resume="python x.py --resume {ckpt}",
        shadow={"batch_hash": -(2**63), "every": 20},
    )
    made.write(tmp_path)
    assert RunFile.read(tmp_path) == made
    more = made.with_attempt(Attempt(2, 7, 2.0, digest_budget=0.2))
    more.write(tmp_path)
    assert [a.first_step for a in RunFile.read(tmp_path).attempts] == [0, 7]
    assert [a.digest_budget for a in RunFile.read(tmp_path).attempts] == [None, 0.2]
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT * FROM attempts") == [(1, 0, 1.25, None), (2, 7, 2.0, 0.2)]
    assert more.layer_names() == {0: "emb", 1: "b"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda folder: None, "no run folder there"),
        (lambda folder: folder.write_text("a file"), "no run folder there"),
        (lambda folder: folder.mkdir(), "this folder is empty"),
        (lambda folder: (folder / "x").mkdir(parents=True), "no guard recorded here"),
    ],
    ids=["missing", "file", "empty", "foreign"],
)
def test_no_run_there(tmp_path: Path, make: Any, what: str) -> None:
    folder = tmp_path / "run"
    make(folder)
    for read in (RunFile.read, RunReader):
        with pytest.raises(RunNotFound, match=what) as caught:
            read(folder)
        assert str(folder) in str(caught.value)
        assert caught.value.next_step


def damaged_contents() -> list[tuple[str, bytes]]:
    sound = {
        "name": "r", "world_size": 1, "format": FORMAT_VERSION, "resume": None, "shadow": None,
        "layers": [{"id": 0, "name": "w", "aliases": [], "shape": [2], "dtype": "float32",
                    "numel": 2}],
        "attempts": [{"attempt": 1, "first_step": 0, "started": 0.0, "environment": {}}],
    }  # fmt: skip
    text = json.dumps(sound)

    def but(**changes: Any) -> bytes:
        return json.dumps(sound | changes).encode()

    return [
        ("empty", b""),
        ("cut", text[:-20].encode()),
        ("binary", b"\xff\xfe\x00" + text.encode()),
        ("list", b"[]"),
        ("number", b"7"),
        ("null", b"null"),
        ("no_layers", json.dumps({k: v for k, v in sound.items() if k != "layers"}).encode()),
        ("no_format", json.dumps({k: v for k, v in sound.items() if k != "format"}).encode()),
        ("format_text", but(format="one")),
        ("unknown_key", but(colour="red")),
        ("layers_number", but(layers=3)),
        ("layers_of_text", but(layers=["w"])),
        ("layer_id_text", but(layers=[sound["layers"][0] | {"id": "x"}])),  # type: ignore[index]
        ("attempts_object", but(attempts={"a": 1})),
        ("attempt_text", but(attempts=[{"attempt": "1; DROP", "first_step": 0, "started": 0.0}])),
        ("started_text", but(attempts=[{"attempt": 1, "first_step": 0, "started": "now"}])),
        (
            "budget_text",
            but(
                attempts=[
                    {"attempt": 1, "first_step": 0, "started": 0.0, "digest_budget": "a little"}
                ]
            ),
        ),
        ("first_step_null", but(attempts=[{"attempt": 1, "first_step": None, "started": 0.0}])),
    ]


@pytest.mark.parametrize(
    "content", [c for _, c in damaged_contents()], ids=[n for n, _ in damaged_contents()]
)
def test_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    for read in (RunFile.read, RunReader):
        with pytest.raises(RunFormatError) as caught:
            read(tmp_path)
        assert "run.json" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_newer_format_is_refused_whatever_else_it_holds(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT_VERSION + 1, "new": []}))
    with pytest.raises(RunFormatError, match="newer") as caught:
        RunReader(tmp_path)
    assert caught.value.next_step == "update SDC Guard"


def test_a_run_json_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(RunNotFound, match="no guard recorded here"):
        RunFile.read(tmp_path)


def test_layers_keep_their_numbers() -> None:
    known = (layer(0, "a"), layer(1, "b"))
    merged = merge_layers(known, [layer(0, "b"), layer(1, "new"), layer(2, "a")])
    assert [(x.id, x.name) for x in merged] == [(0, "a"), (1, "b"), (2, "new")]


@pytest.mark.parametrize("now", [layer(0, "a", (3,)), layer(0, "a", (2,), "float16")])
def test_another_model_is_refused(now: Layer) -> None:
    with pytest.raises(RunFormatError, match="another model: a was float32") as caught:
        merge_layers((layer(0, "a"),), [now])
    assert "folder of its own" in str(caught.value)


def test_buffers_are_numbered_with_the_layers_and_kept_apart(tmp_path: Path) -> None:
    run = RunFile("r", 1, ()).with_layers([layer(0, "a"), layer(1, "b")], [layer(0, "mask")])
    run = run.with_layers([layer(0, "a"), layer(1, "new")], [layer(0, "mask", (5,)), layer(1, "m")])
    assert {item.id: item.name for item in run.layers} == {0: "a", 1: "b", 3: "new"}
    assert {item.id: item.name for item in run.buffers} == {2: "mask", 4: "m"}
    run.write(tmp_path)
    assert RunFile.read(tmp_path) == run
    with RunReader(tmp_path) as reader:
        names = reader.rows("SELECT layer, name FROM layer_names ORDER BY layer")
    assert names == [(0, "a"), (1, "b"), (2, "mask"), (3, "new"), (4, "m")]


def test_a_run_without_buffers_is_as_it_was_before_they_were_known(tmp_path: Path) -> None:
    RunFile("r", 1, (layer(0, "a"),)).write(tmp_path)
    assert "buffers" not in json.loads((tmp_path / "run.json").read_text())
    assert RunFile.read(tmp_path).buffers == ()
