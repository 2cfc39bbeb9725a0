"""Single safetensors files: values as their own library reads them, damage in a line."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from made_safetensors import by_hand, entry, holds, lfs_pointer, only, opened
from safetensors import safe_open
from safetensors.torch import load_file, save_file, save_model

from forensics.readers.findings import Findings
from forensics.readers.safetensors_file import READER
from sdc_guard.archive.safetensors_header import BITS
from sdc_guard.errors import CheckpointUnreadable

EIGHT = b"\0\0\x80?\0\0\0@"


@pytest.fixture
def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "head.weight": torch.randn((64, 64), generator=generator),
        "body.weight": torch.randn((64, 64), generator=generator),
    }


@pytest.fixture
def good(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    path = tmp_path / "step-300.safetensors"
    save_file(weights, path)
    return path


def test_values_shapes_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    content = {
        "matrix": torch.arange(12.0).reshape(3, 4), "scalar": torch.tensor(2.5),
        "empty": torch.empty(3, 0, 2), "count": torch.tensor([2**60 + 1]),
    }  # fmt: skip
    save_file(content, path, metadata={"format": "pt", "step": "1200", "author": "me"})
    found = opened(READER, path)
    assert holds(found, load_file(path))
    assert found.step == 1200
    assert found.numbers["__metadata__.author"] == "me"
    assert found.aliases == {}
    assert found.tensors["matrix"].files == (path,)
    found.tensors["matrix"].read().zero_()  # a copy: the file stays as it is
    assert holds(found, content)


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_every_data_type_of_the_format(tmp_path: Path, dtype: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = 2 * BITS[dtype]  # bytes of 16 elements
    bits = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    bits = bits % 2 if dtype == "BOOL" else bits
    data = bits.numpy().tobytes()
    path = by_hand(tmp_path / "a.safetensors", {"w": entry(0, len(data), [2, 8], dtype)}, data)
    if dtype.startswith("F6_"):  # neither torch nor the library has them: bytes
        assert holds(opened(READER, path), {"w": bits})
        return
    expected = load_file(path)  # the library says dtype and shape
    assert holds(opened(READER, path), expected)
    assert READER.check(only(READER, path)).unchecked == ("w",)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("model_1500", 1500), ("step=250", 250), ("epoch=3-step=250", 250), ("weights", 0),
        ("global_step799", 799), ("1000_steps", 1000), ("ckpt12", 12), ("iter_0000100", 100),
        ("checkpoint-10000", 10000), ("model_fp16", 0), ("llama-7b", 0), ("net-30-bf16", 30),
        ("model-00002-of-00003", 0), ("step-9-00002-of-00003", 9),
    ],
)  # fmt: skip
def test_steps_in_names(name: str, step: int) -> None:
    assert Findings().checkpoint(Path(name), "any", name).step == step


def test_step_from_metadata_name_or_folder(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(2)}
    named, inner = tmp_path / "m-400.safetensors", tmp_path / "m-500.safetensors"
    save_file(tensors, named)
    save_file(tensors, inner, metadata={"global_step": "499"})
    first, second = READER.find(tmp_path)
    assert (first.step, first.named_step) == (400, None)
    assert first.notes == ("its step is the one in its name",)
    assert (second.step, second.named_step) == (499, 500)
    assert second.notes == ("the name says step 500, the content says step 499",)
    assert first.reasons == second.reasons == ()
    for step in (9000, 10000):
        folder = tmp_path / "runs" / f"step_{step}"
        folder.mkdir(parents=True)
        save_file(tensors, folder / "model.safetensors")
        save_file(tensors, folder / "ema.safetensors")
    found = READER.find(tmp_path / "runs")
    assert sorted(one.step for one in found) == [9000, 10000]
    assert {one.path.name for one in found} == {"model.safetensors"}


@pytest.mark.parametrize("step", ["-1", "1e3", "²", "9" * 25, ""])
def test_a_step_that_is_none_is_left_to_the_name(tmp_path: Path, step: str) -> None:
    path = tmp_path / "m-7.safetensors"
    save_file({"w": torch.ones(2)}, path, metadata={"step": step})
    assert only(READER, path).step == 7


def test_cut_files_say_what_is_missing(good: Path, weights: dict[str, torch.Tensor]) -> None:
    content = good.read_bytes()
    size = len(content)
    header = 8 + int.from_bytes(content[:8], "little")
    for cut, reason in [
        (0, "safetensors header incomplete: the file is empty (0 bytes)"),
        (4, "safetensors header incomplete: 4 of 8 bytes"),
        (header - 1, f"safetensors header incomplete: {header - 9} of {header - 8} bytes"),
        (size // 2, f"safetensors data incomplete: {size // 2 - header:,} of 32,768 bytes"),
        (size - 1, "safetensors data incomplete: 32,767 of 32,768 bytes"),
    ]:
        good.write_bytes(content[:cut])
        checkpoint = only(READER, good)
        assert (checkpoint.readable, checkpoint.reasons) == (False, (reason,))
        assert checkpoint.step == 300
    # what is left of it is told apart from what is not
    integrity = READER.check(checkpoint)
    assert integrity.damaged == {"head.weight": "16,383 of its 16,384 bytes are there"}
    assert integrity.unchecked == ("body.weight",)
    assert integrity.bytes == size - 1
    found = READER.open(checkpoint)
    assert torch.equal(found.tensors["body.weight"].read(), weights["body.weight"])
    with pytest.raises(CheckpointUnreadable, match=r"head\.weight cannot be read: 16,383 of"):
        found.tensors["head.weight"].read()


def test_trailing_bytes_are_told_and_the_tensors_read(
    good: Path, weights: dict[str, torch.Tensor]
) -> None:
    with good.open("ab") as file:
        file.write(b"\0\1\2\3")
    checkpoint = only(READER, good)
    assert checkpoint.readable
    assert checkpoint.reasons == ()
    assert checkpoint.notes[0] == "4 trailing bytes; tensors intact"
    assert holds(READER.open(checkpoint), weights)
    integrity = READER.check(checkpoint)
    assert integrity.damaged == {}
    assert integrity.intact == ()
    assert sorted(integrity.unchecked) == sorted(weights)
    assert integrity.bytes == good.stat().st_size
    with pytest.raises(Exception, match="not fully covered"):
        load_file(good)  # which is why the library is not what reads here


def test_no_tensors_is_neither_clean_nor_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "model-5.safetensors"
    save_file({}, path, metadata={"k": "v"})
    assert only(READER, path).reasons == ("no tensors in file",)
    by_hand(path, b'{},"__metadata__"', b"")
    assert only(READER, path).reasons == (
        "no tensors in file; safetensors header damaged: not JSON at byte 2",
    )
    for checkpoint in READER.find(tmp_path):
        assert not checkpoint.readable
        with pytest.raises(CheckpointUnreadable, match="no tensors in file"):
            READER.open(checkpoint)


F32 = entry(0, 8, [2])
DAMAGED: list[tuple[object, str]] = [
    ({"a": F32, "b": entry(4, 12, [2])}, "tensors a and b overlap"),
    ({"a": F32, "b": entry(12, 16, [1])}, "offsets out of range, 4 bytes between a and b"),
    ({"a": entry(4, 12, [2])}, "offsets out of range, 4 bytes before the first tensor, a"),
    ({"a": entry(8, 0, [2])}, "tensor a has offsets out of range, [8, 0]"),
    ({"a": entry(-8, 0, [2])}, "tensor a has offsets out of range, [-8, 0]"),
    ({"a": entry(0, 8, [3])}, "tensor a takes 12 bytes by its shape, 8 by its offsets"),
    ({"a": entry(0, 8, [2**40, 2**40])}, "tensor a has the impossible shape"),
    ({"a": entry(0, 0, [0, 2**62, 2**62])}, "tensor a has the impossible shape"),
    ({"a": entry(0, 8, [1] * 80)}, "tensor a has the impossible shape"),
    ({"a": entry(0, 8, [2], "C128")}, "tensor a is of the unknown dtype C128"),
    ({"a": entry(0, 2, [3], "F4")}, "tensor a ends within a byte"),
    ({"a": {"dtype": "F32"}}, "tensor a lacks dtype, shape or data_offsets"),
    ({"a": entry(True, 8, [2])}, "tensor a has offsets out of range"),  # type: ignore[arg-type]
    ([F32], "not a JSON object"),
    ({"a": F32, "__metadata__": {"step": 3}}, "__metadata__ does not give texts by name"),
    (b'{"a": 1, "a": 2}', "a twice"),
    (b'{"a": {"dtype": "F32", "dtype": "F32"}}', "dtype twice"),
    (b'{"__metadata__": {}, "__metadata__": {}}', "__metadata__ twice"),
    (b'{"\\ud800": 1}', "a name that is no text"),
    (b'{"a": NaN}', "NaN in it"),
    (b'{"a": \xff}', "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    (b"", "its length is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "reason"), DAMAGED, ids=[reason for _, reason in DAMAGED])
def test_contradictory_headers(tmp_path: Path, header: Any, reason: str) -> None:
    path = by_hand(tmp_path / "a.safetensors", header, EIGHT * 2)
    checkpoint = only(READER, path)
    assert not checkpoint.readable
    assert checkpoint.reasons[0].startswith(f"safetensors header damaged: {reason}")
    for act in (READER.open, READER.check):
        with pytest.raises(CheckpointUnreadable, match="safetensors header damaged"):
            act(checkpoint)


def test_other_files_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "model-300.safetensors"
    torch.save({"w": torch.ones(3)}, path)
    assert only(READER, path).reasons == (
        "not a safetensors file: a zip archive, as torch.save writes",
    )
    path.write_bytes(pickle.dumps({"w": 1}))
    assert only(READER, path).reasons == (
        "not a safetensors file: a Python pickle, which is not read",
    )
    path.write_text("<!DOCTYPE html><html>404</html>")
    assert "an HTML page" in only(READER, path).reasons[0]
    path.write_text('{"a": "json text"}')
    assert only(READER, path).reasons == ("not a safetensors file: JSON text",)
    lfs_pointer(path)
    assert only(READER, path).reasons == (
        "Git LFS pointer; real content (12,965 bytes) not downloaded",
    )
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")  # 8 EiB: nothing is allocated
    assert only(READER, path).reasons == (
        "safetensors header damaged, or another file: a length of 9,223,372,036,854,775,808 bytes",
    )
    path.write_bytes(bytes(4096))
    assert only(READER, path).reasons == ("safetensors header damaged: its length is 0",)
    assert only(READER, path).step == 300
    path.unlink()
    path.mkdir()
    assert READER.find(tmp_path) == []  # a folder is no file of this format


def test_the_library_agrees_which_headers_are_sound(tmp_path: Path) -> None:
    sound: list[object] = [
        b'   {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "more": [1]}}  ',
        {"z": entry(8, 16, [2]), "a": F32, "e": entry(8, 8, [0, 5])},
        {"u": entry(0, 1, [1], "U8"), "w": entry(1, 9, [2]), "v": entry(9, 16, [7], "I8")},
        {"__metadata__": {}, "a": entry(0, 16, [2, 2])},
    ]
    for number, header in enumerate(sound):
        data = EIGHT if not number else EIGHT * 2
        path = by_hand(tmp_path / "a.safetensors", header, data)
        found = opened(READER, path)
        assert holds(found, load_file(path)), header
        for stored in found.tensors.values():  # where the file does not align them, too
            assert stored.read().data_ptr() % stored.dtype.itemsize == 0


def test_metadata_that_names_a_tensor_by_chance_is_no_alias(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = {"pt": torch.ones(1), "7": torch.ones(2)}
    save_file(tensors, path, metadata={"format": "pt", "step": "7"})
    found = opened(READER, path)
    assert found.aliases == {}
    assert found.step == 7


def test_tied_weights_are_aliases(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    path = tmp_path / "tied.safetensors"
    save_model(model, str(path), metadata={"format": "pt", "note": "0.weight"})
    found = opened(READER, path)
    with safe_open(path, "pt") as file:
        (kept,) = file.keys()
    (alias,) = {"0.weight", "1.weight"} - {kept}
    assert found.aliases[alias] == kept
    assert found.numbers["__metadata__.format"] == "pt"
    assert holds(found, {kept: model[0].weight.detach()})


def test_a_file_that_may_not_be_read(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    name = "sdc_guard.archive.safetensors_header.open_regular"
    monkeypatch.setattr(name, refused)  # root may read every file
    assert only(READER, good).reasons == ("cannot be read: Permission denied",)


def test_a_file_that_vanishes_or_shrinks_after_it_was_found(good: Path) -> None:
    checkpoint = only(READER, good)
    found = READER.open(checkpoint)
    os.truncate(good, 20_000)
    with pytest.raises(CheckpointUnreadable, match=r"of its 16,384 bytes are there"):
        found.tensors["head.weight"].read()
    good.unlink()
    with pytest.raises(CheckpointUnreadable, match="No such file"):
        found.tensors["body.weight"].read()
    for act in (READER.open, READER.check):
        with pytest.raises(CheckpointUnreadable, match="no such file"):
            act(checkpoint)


def test_pipes_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert READER.find(tmp_path) == []
    assert READER.find(tmp_path / "model.safetensors") == []
    assert READER.find(tmp_path / "nothing") == []
