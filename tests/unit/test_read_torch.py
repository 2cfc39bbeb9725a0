"""Files of torch.save, of both layouts: equal to torch.load, lazily, and damage told in a line."""

from __future__ import annotations

import struct
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forensics.checkpoint import Checkpoint
from forensics.content import Content, StoredTensor
from forensics.index import index
from forensics.oracles.integrity import IntegrityOracle
from forensics.readers import torch_legacy, torch_zip
from forensics.readers.known import reader_of
from sdc_guard.archive.inventory import inventory
from sdc_guard.archive.save import tensors_in
from sdc_guard.digest.reference import words
from sdc_guard.errors import CheckpointUnreadable

LAYOUTS = [True, False]  # zip, and that of before 1.6


def save(path: Path, content: Any, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def only(path: Path) -> Checkpoint:
    (found,) = torch_zip.find(path)
    return found


def opened(path: Path) -> Content:
    found = only(path)
    return reader_of(found.format).open(found)


def whole(content: Content) -> dict[str, StoredTensor]:
    """Every name, aliases too."""
    return {**content.tensors, **{k: content.tensors[v] for k, v in content.aliases.items()}}


def assert_same(content: Content, expected: dict[str, torch.Tensor]) -> None:
    names = whole(content)
    assert names.keys() == expected.keys()
    for name, tensor in expected.items():
        stored = names[name]
        assert (stored.dtype, stored.shape) == (tensor.dtype, tuple(tensor.shape))
        read = stored.read()
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(words(read.contiguous()), words(tensor.contiguous()))


def flip(path: Path, place: int, mask: int = 0x40) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)


def odd_tensors() -> dict[str, Any]:
    base = torch.randn(6, 8)
    return {
        "base": base,
        "view": base[2:4, ::3],
        "row": base[5],
        "expanded": base[:1].expand(3, 8),
        "transposed": base.t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty_rows": torch.empty(3, 0, 2),
        "half": torch.randn(5).half(),
        "brain": torch.randn(5).bfloat16(),
        "flags": torch.rand(9) > 0.5,
        "complex": torch.randn(4, dtype=torch.complex64),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "by_kind": defaultdict(list, {"x": torch.ones(2)}),
        "counted": Counter("aab"),
        "list": [torch.ones(1), (torch.zeros(1), {"deep": torch.ones(2)})],
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }


@pytest.mark.parametrize("zipped", LAYOUTS)
def test_every_tensor_is_that_of_torch_load(tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path / "state.pt", odd_tensors(), zipped)
    assert_same(opened(path), tensors_in(torch.load(path, weights_only=False)))


@pytest.mark.parametrize("zipped", LAYOUTS)
def test_model_and_optimizer(tmp_path: Path, zipped: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 31}
    assert isinstance(state["model"], OrderedDict)
    path = save(tmp_path / "m.pt", state, zipped)
    content = opened(path)
    assert_same(content, tensors_in(torch.load(path, weights_only=True)))
    assert content.aliases == {"model.1.weight": "model.0.weight"}  # a tie is stored once
    assert content.numbers["optimizer.param_groups.0.lr"] == 0.25
    assert content.numbers["optimizer.param_groups.0.amsgrad"] is False
    assert content.step == 31
    assert content.foreign == {}
    assert content.tensors["model.0.weight"].files == (path,)


def test_a_module_saved_whole_shows_its_tensors(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    content = opened(save(tmp_path / "whole.pth", model))
    assert content.foreign == {"": "torch.nn.modules.container.Sequential"}
    weight = content.tensors["_modules.0._parameters.weight"]
    assert torch.equal(weight.read(), model[0].weight)
    assert "_modules.1._buffers.running_mean" in content.tensors


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.randn(1000, 50)
    path = save(tmp_path / "s-1.pt", {"rows": base[10:12], "other": torch.randn(5000), "n": 1})
    taken: list[int] = []
    read = torch_zip.TorchRecords.read

    def watched(self: Any, name: str, first: int = 0, end: int | None = None) -> bytearray:
        found = read(self, name, first, end)
        if name.startswith("data/"):
            taken.append(len(found))
        return found

    monkeypatch.setattr(torch_zip.TorchRecords, "read", watched)
    content = opened(path)
    assert taken == []  # finding and opening read no tensor
    assert torch.equal(content.tensors["rows"].read(), base[10:12])
    assert taken == [2 * 50 * 4]  # of the storage only the view's bytes


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    path = save(tmp_path / "w.pt", {"w": torch.ones(4)})
    before = path.read_bytes()
    content = opened(path)
    content.tensors["w"].read().add_(1)
    assert content.tensors["w"].read().tolist() == [1, 1, 1, 1]
    assert path.read_bytes() == before


# --- damage


def test_a_flipped_byte_is_named_by_tensor_and_record(tmp_path: Path) -> None:
    """A01."""
    for step in (100, 200, 300, 400, 500):
        tensors = {"a": torch.ones(64, 64), "b": torch.full((64, 64), 2.0), "step": step}
        save(tmp_path / f"step-{step}.pt", tensors)
    bad = tmp_path / "step-300.pt"
    flip(bad, bad.read_bytes().index(struct.pack("<ff", 2.0, 2.0)) + 400)
    assert torch.load(bad)["step"] == 300  # without a word
    checked = torch_zip.READER.check(only(bad))
    assert checked.damaged == {"b": "CRC mismatch in record data/1"}
    assert (checked.intact, checked.unchecked) == (("a",), ())
    assert checked.bytes > 2 * 64 * 64 * 4
    found = index(tmp_path)
    assert {one.status for one in found} == {"untested"}  # no tensor is read for a list
    judged = [IntegrityOracle().judge(one) for one in found]
    assert [one.verdict for one in judged] == ["clean"] * 2 + ["corrupt"] + ["clean"] * 2
    assert judged[2].reason == "b: CRC mismatch in record data/1"


def test_a_block_of_zeros_and_a_damaged_header(tmp_path: Path) -> None:
    """A03."""
    state = {name: torch.randn(3000) for name in "abcdef"}
    path = save(tmp_path / "m.pt", state)
    content = bytearray(path.read_bytes())
    hole = content.index(state["c"].numpy().tobytes()) + 2000
    content[hole : hole + 4096] = bytes(4096)
    with zipfile.ZipFile(path) as archive:
        content[archive.getinfo("m/data/4").header_offset + 2] ^= 1
    path.write_bytes(content)
    checked = torch_zip.READER.check(only(path))
    assert checked.damaged == {
        "c": "CRC mismatch in record data/2",
        "e": "record data/4 cannot be read (the header before it is damaged)",
    }
    assert checked.intact == ("a", "b", "d", "f")
    tensors = opened(path).tensors
    assert torch.equal(tensors["f"].read(), state["f"])
    with pytest.raises(CheckpointUnreadable, match="data/4 cannot be read"):
        tensors["e"].read()


def test_damage_that_concerns_no_tensor(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt", {"w": torch.ones(3), "note": "a text of some length"})
    flip(path, path.read_bytes().index(b"a text of") + 3, 1)
    checked = torch_zip.READER.check(only(path))
    assert checked.damaged == {"data.pkl": "CRC mismatch in record data.pkl"}
    assert checked.intact == ("w",)


def test_a_file_without_checksums(tmp_path: Path) -> None:
    try:
        torch.serialization.set_crc32_options(False)
        path = save(tmp_path / "m.pt", {"w": torch.randn(100), "step": 4})
    finally:
        torch.serialization.set_crc32_options(True)
    checked = torch_zip.READER.check(only(path))
    assert (checked.damaged, checked.intact, checked.unchecked) == ({}, (), ("w",))
    assert index(path)[0].status == "untested"


def test_a_large_file_is_checked_as_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"w{n}": torch.randn(300_000) for n in range(8)}
    path = save(tmp_path / "m.pt", state)
    with zipfile.ZipFile(path) as archive:
        flip(path, archive.getinfo("m/data/5").header_offset + 900_000)
    threaded = torch_zip.READER.check(only(path))  # 9.6 MB
    assert threaded.damaged == {"w5": "CRC mismatch in record data/5"}
    monkeypatch.setattr("forensics.readers.torch_crc._FEW_BYTES", 10**9)
    assert torch_zip.READER.check(only(path)) == threaded


@pytest.mark.parametrize("zipped", LAYOUTS)
@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_cut_files(tmp_path: Path, keep: float, zipped: bool) -> None:
    """A04, A18: among whole neighbours, the reason says how many bytes are missing."""
    for step in (100, 200, 300):
        save(tmp_path / f"s-{step}.pt", {"w": torch.randn(5000), "step": step}, zipped)
    path = tmp_path / "s-200.pt"
    sound = path.read_bytes()
    size = int(len(sound) * keep) if 0 < keep < 1 else len(sound) - 1 if keep < 0 else int(keep)
    path.write_bytes(sound[:size])
    found = index(tmp_path)
    assert [one.step for one in found] == [100, 200, 300]
    assert [one.readable for one in found] == [True, False, True]
    assert (found[1].status, found[1].named_step) == ("untested", None)
    first, *hint = found[1].reasons
    assert first.startswith("unreadable: ")
    if keep == 0:
        assert first == "unreadable: the file is empty (0 bytes)"
    elif keep == 10:
        assert "truncated at 10 bytes" in first
    elif zipped and keep == 0.5:
        assert f"truncated ({size:,} of at least " in first
        told = int(first.rpartition("least ")[2].split(" ")[0].replace(",", ""))
        assert size < told <= len(sound)
    else:
        assert first == f"unreadable: truncated ({size:,} of {len(sound):,} bytes)"
    if keep in (0, 10):
        whole = f"({size:,} of {len(sound):,} bytes)"
        assert hint == [f"much smaller than its neighbours {whole}, disk full?"]
    with pytest.raises(CheckpointUnreadable):
        reader_of(found[1].format).open(found[1])
    with pytest.raises(CheckpointUnreadable):
        reader_of(found[1].format).check(found[1])


def test_the_zip_directory_alone_is_cut(tmp_path: Path) -> None:
    path = save(tmp_path / "s-2.pt", {"w": torch.randn(500)})
    path.write_bytes(path.read_bytes()[:-400])
    assert only(path).reasons == (
        f"unreadable: truncated at {path.stat().st_size:,} bytes, "
        "the zip directory at its end is gone",
    )


def test_no_place_in_a_legacy_file_may_be_its_end(tmp_path: Path) -> None:
    state = {"a": torch.randn(7), "b": torch.arange(3), "step": 5}
    path = save(tmp_path / "s.pt", state, zipped=False)
    sound = path.read_bytes()
    for size in (*range(20, len(sound), 7), len(sound) - 1):
        path.write_bytes(sound[:size])
        found = only(path)
        assert not found.readable
        assert "truncated" in found.reasons[0], size
    path.write_bytes(sound + b"more")
    found = only(path)
    assert (found.readable, found.step, found.format) == (True, 5, "torch-legacy")
    assert found.notes[-1] == "4 bytes follow its last tensor"
    checked = torch_legacy.READER.check(found)
    assert (checked.damaged, checked.unchecked) == ({}, ("a", "b"))
    assert checked.bytes == len(sound) + 4


def test_a_legacy_file_larger_than_the_first_read(tmp_path: Path) -> None:
    state = {f"layer.{n}.weight": torch.full((2,), float(n)) for n in range(1500)}
    path = save(tmp_path / "s.pt", state, zipped=False)
    assert_same(opened(path), state)


def test_a_damaged_count_of_a_legacy_storage(tmp_path: Path) -> None:
    path = save(tmp_path / "s.pt", {"a": torch.arange(1000, 1003)}, zipped=False)
    flip(path, path.read_bytes().index(struct.pack("<q", 1000)) - 8, 0x10)
    (reason,) = only(path).reasons
    assert "has 19 elements, not 3" in reason


def test_pointers_and_other_formats(tmp_path: Path) -> None:
    """A19."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12965\n"
    for name in ("a-1.pt", "b-2.pth", "pytorch_model.bin"):
        (tmp_path / name).write_text(pointer)
    (tmp_path / "c-3.pt").write_bytes(bytes(257) + b"ustar  \0" + bytes(300))
    (tmp_path / "d-4.pt").write_bytes(bytes(5000))
    (tmp_path / "tokenizer.bin").write_bytes(b"other")  # of another program: left out
    found = {one.path.name: one.reasons[0] for one in torch_zip.find(tmp_path)}
    said = "a Git LFS pointer; its content (12,965 bytes) was not downloaded"
    assert found["a-1.pt"] == found["b-2.pth"] == found["pytorch_model.bin"] == said
    assert "the tar format of torch.save before 0.2" in found["c-3.pt"]
    assert "it begins with zeros (5,000 bytes)" in found["d-4.pt"]
    assert len(found) == 5


class Settings:
    """An object of a script's own class."""

    def __init__(self) -> None:
        self.rate, self.mask = 0.1, torch.ones(3)


@pytest.mark.parametrize("zipped", LAYOUTS)
def test_foreign_objects_are_listed_and_not_evaluated(tmp_path: Path, zipped: bool) -> None:
    """A21."""
    state = {
        "w": torch.ones(2),
        "numpy_rng": np.random.RandomState(3).get_state(),
        "generator": np.random.default_rng(3),
        "settings": Settings(),
        "loss": np.float64(0.25),
        "global_step": np.int64(700),
        "history": [0.5] * 5000,
        "when": complex(1, 2),
        "kind": torch.float16,
        "nothing": None,
    }
    path = save(tmp_path / "rng_state-700.pt", state, zipped)
    content = opened(path)
    assert list(content.tensors) == ["w", "settings.mask"]
    assert content.numbers["loss"] == 0.25
    assert content.step == 700
    assert content.foreign["numpy_rng.1"] == "numpy.ndarray"
    assert content.foreign["settings"].endswith("test_read_torch.Settings")
    assert "random" in content.foreign["generator"]
    assert content.foreign["history"] == "list of 5,000 numbers"
    assert content.foreign["kind"] == "torch.float16"
    assert content.numbers["numpy_rng.0"] == "MT19937"
    assert not any(name.startswith(("history", "nothing")) for name in content.numbers)
    found = only(path)
    assert (found.status, found.readable, found.reasons) == ("untested", True, ())


def test_a_checkpoint_without_tensors_says_so(tmp_path: Path) -> None:
    assert only(save(tmp_path / "s-3.pt", {"step": 3})).notes == ("it holds no tensors",)


def test_names_are_those_of_the_archive(tmp_path: Path) -> None:
    state = {"a": {"b": torch.zeros(1), 0: torch.ones(1), "0": torch.full((1,), 2.0)}}
    state["a.b"] = torch.full((1,), 3.0)  # type: ignore[assignment] # because this is tested
    path = save(tmp_path / "s.pt", state)
    assert_same(opened(path), tensors_in(state))


def test_structures_without_an_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        inventory(loop, 100)
    wide: Any = torch.float32
    for _ in range(60):
        wide = [wide, wide]  # 2 ** 60 leaves
    with pytest.raises(RecursionError):
        inventory(wide, 100)


def test_a_link_and_a_folder_of_that_name(tmp_path: Path) -> None:
    save(tmp_path / "s-1.pt", {"w": torch.ones(1), "step": 1})
    (tmp_path / "s-2.pt").mkdir()
    (tmp_path / "s-3.pt").symlink_to(tmp_path / "gone.pt")
    assert [one.step for one in torch_zip.find(tmp_path)] == [1]
