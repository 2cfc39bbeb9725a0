"""The inert reader: equal to torch.load where that is safe, and harmless where it is not."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_pickles import Calls, hostile, opcodes, with_pickle

from sdc_guard.archive import inert_pickle
from sdc_guard.archive.rebuilt import REBUILDERS
from sdc_guard.archive.save import tensors_in
from sdc_guard.archive.torch_file import TorchFile, read_torch_file
from sdc_guard.digest.reference import words
from sdc_guard.errors import CheckpointUnreadable

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


def same_as_torch(path: Path) -> dict[str, torch.Tensor]:
    """Compare with torch.load tensor by tensor: bits, shape, strides, dtype, sharing."""
    expected = tensors_in(torch.load(path, weights_only=True))
    content = read_torch_file(path)
    assert content.damaged == {}
    assert list(content.tensors) == list(expected)
    for name, tensor in expected.items():
        found = content.tensors[name]
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert found.stride() == tensor.stride()
        assert torch.equal(words(found), words(tensor))
    for one in expected:
        for other in expected:
            if expected[one].numel() and expected[other].numel():
                shared = [
                    tensors[one].untyped_storage().data_ptr()
                    == tensors[other].untyped_storage().data_ptr()
                    for tensors in (expected, content.tensors)
                ]
                assert shared[0] == shared[1]
    return content.tensors


def saved(tmp_path: Path, content: Any, **options: Any) -> Path:
    path = tmp_path / "state.pt"
    torch.save(content, path, **options)
    return path


def try_to_read(path: Path) -> TorchFile | CheckpointUnreadable:
    try:
        return read_torch_file(path)
    except CheckpointUnreadable as error:
        return error


def random_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(count) > 0.5
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype)


def test_every_dtype(tmp_path: Path) -> None:
    found = same_as_torch(saved(tmp_path, {str(dtype): random_bits(dtype, 12) for dtype in DTYPES}))
    assert len(found) == len(DTYPES)


def test_strides_and_shared_storages(tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    content = {
        "base": base,
        "transposed": base.t(),
        "view": base[2:4, ::3],
        "row": base[5],
        "expanded": base[:1].expand(3, 8),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty_rows": torch.empty(3, 0, 2),
        "other": torch.arange(5),
    }
    same_as_torch(saved(tmp_path, content))


def test_lazy_conjugates_and_negatives(tmp_path: Path) -> None:
    z = torch.randn(5, dtype=torch.complex64)
    same_as_torch(
        saved(
            tmp_path, {"z": z, "conjugate": z.conj(), "negative": torch._neg_view(torch.randn(4))}
        )
    )


def test_modules_parameters_and_ties(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
    )
    head = torch.nn.Linear(4, 7, bias=False)
    head.weight = model[0].weight
    model.append(head)
    state = model.state_dict()
    assert isinstance(state, OrderedDict)
    assert state._metadata  # type: ignore[attr-defined] # because torch hangs it there
    tagged = torch.nn.Parameter(torch.randn(3))
    tagged.label = "x"  # type: ignore[attr-defined] # because this is what is tested
    plain = torch.ones(2)
    plain.label = 4  # type: ignore[attr-defined] # because this is what is tested
    content = {
        "model": state,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "frozen": torch.nn.Parameter(torch.randn(2), requires_grad=False),
        "tagged": tagged,
        "plain": plain,
        "list": [torch.ones(1), (torch.zeros(1), {"deep": torch.ones(2)})],
        "counter": Counter("aab"),
        "numbers": [
            1,
            2.5,
            None,
            True,
            "x",
            b"y",
            {1, 2},
            1 + 2j,
            torch.Size([2, 3]),
            torch.float16,
        ],
    }
    found = same_as_torch(saved(tmp_path, content))
    assert "model.0.weight" in found
    assert found["model.0.weight"].data_ptr() == found["model.3.weight"].data_ptr()
    assert "list.1.1.deep" in found


@pytest.mark.parametrize("amsgrad", [False, True])
def test_an_adam_state(tmp_path: Path, amsgrad: bool) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=amsgrad)
    for _ in range(2):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    found = same_as_torch(
        saved(tmp_path, {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()})
    )
    assert found["optimizer.state.1.exp_avg_sq"].shape == (2,)
    assert found["optimizer.state.0.step"] == 2


def test_the_step_and_the_old_pickle_protocols(tmp_path: Path) -> None:
    for protocol in (2, 3, 4, 5):
        path = saved(tmp_path, {"step": 12, "w": torch.ones(2)}, pickle_protocol=protocol)
        assert read_torch_file(path).step == 12
        assert read_torch_file(path).tensors["w"].tolist() == [1.0, 1.0]
    assert read_torch_file(saved(tmp_path, [torch.ones(1)])).step is None
    assert read_torch_file(saved(tmp_path, {"step": torch.tensor(3)})).step is None


def test_paths_that_come_twice_are_both_there(tmp_path: Path) -> None:
    content = {
        "a": {"b": torch.zeros(1), 0: torch.ones(1), "0": torch.full((1,), 2.0)},
        "a.b": torch.full((1,), 3.0),
    }
    found = same_as_torch(saved(tmp_path, content))
    assert {name: tensor.item() for name, tensor in found.items()} == {
        "a.b": 0, "a.0": 1, "a.0#2": 2, "a.b#2": 3,
    }  # fmt: skip


def test_tensors_without_plain_memory_are_passed_over_on_both_sides(tmp_path: Path) -> None:
    content = {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "plain": torch.ones(2),
    }
    assert list(tensors_in(content)) == ["plain"]
    assert list(read_torch_file(saved(tmp_path, content)).tensors) == ["plain"]


def test_a_file_without_checksums_is_not_called_damaged(tmp_path: Path) -> None:
    try:
        torch.serialization.set_crc32_options(False)
        path = saved(tmp_path, {"w": torch.randn(100)})
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("state/data/0").CRC == 0
    same_as_torch(path)


def test_a_flipped_byte_in_a_tensor_is_named_by_its_record(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.ones(64, 64), "b": torch.full((64, 64), 2.0)})
    content = bytearray(path.read_bytes())
    place = content.index(struct.pack("<ff", 2.0, 2.0)) + 400
    content[place] ^= 0x40
    path.write_bytes(content)
    found = read_torch_file(path)
    assert found.damaged == {"b": "CRC mismatch in record data/1"}
    assert torch.equal(found.tensors["a"], torch.ones(64, 64))
    assert (found.tensors["b"] != 2).sum() == 1


def test_a_flipped_byte_in_the_structure_is_noticed(tmp_path: Path, seed: int) -> None:
    path = saved(tmp_path, {"lr": 0.001, "weight": torch.ones(3), "text": "some long text here"})
    sound = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("state/data.pkl")
    start, random_ = sound.index(pickled), random.Random(seed)
    for _ in range(60):
        content = bytearray(sound)
        content[start + random_.randrange(len(pickled))] ^= 1 << random_.randrange(8)
        path.write_bytes(content)
        found = try_to_read(path)
        if isinstance(found, CheckpointUnreadable):
            assert "structure" in str(found)
        else:
            assert found.damaged["data.pkl"] == "CRC mismatch in record data.pkl"


def test_any_flipped_byte_gives_an_answer_or_one_kind_of_error(tmp_path: Path, seed: int) -> None:
    path = saved(tmp_path, {"a": torch.randn(40), "b": [torch.arange(9)], "step": 3})
    sound, random_ = path.read_bytes(), random.Random(seed)
    for _ in range(400):
        content = bytearray(sound)
        for _ in range(random_.choice([1, 1, 1, 5, 50])):
            content[random_.randrange(len(content))] = random_.randrange(256)
        path.write_bytes(content)
        found = try_to_read(path)
        assert not isinstance(found, CheckpointUnreadable) or "\n" not in str(found)


@pytest.mark.parametrize("size", [0, 1, 10, 0.25, 0.5, 0.9, -1])
def test_a_cut_file(tmp_path: Path, size: float) -> None:
    path = saved(tmp_path, {"w": torch.randn(500)})
    sound = path.read_bytes()
    path.write_bytes(sound[: int(len(sound) * size) if 0 < size < 1 else int(size)])
    with pytest.raises(CheckpointUnreadable) as caught:
        read_torch_file(path)
    assert "\n" not in str(caught.value)
    assert caught.value.where == str(path)
    assert ("empty (0 bytes)" if size == 0 else "unreadable") in str(caught.value)


def test_what_is_no_checkpoint_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"

    def reason() -> str:
        with pytest.raises(CheckpointUnreadable) as caught:
            read_torch_file(path)
        return caught.value.what

    assert reason() == "no checkpoint file there"
    path.mkdir()
    assert reason() == "a folder, not a torch.save file"
    path.rmdir()
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert "before 1.6" in reason()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12965\n")
    assert reason() == "a Git LFS pointer; its content (12,965 bytes) was not downloaded"
    path.write_text("{}")
    assert "not a torch.save zip file (2 bytes" in reason()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "x")
    assert "no data.pkl" in reason()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"w": 1}, protocol=2))
        archive.writestr("x/byteorder", "big" if sys.byteorder == "little" else "little")
    assert "byte order" in reason()


def test_a_missing_record(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)})
    other = tmp_path / "other.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            if not name.endswith("data/1"):
                new.writestr(name, old.read(name))
    found = read_torch_file(other)
    assert list(found.tensors) == ["a"]
    assert found.damaged == {"b": "record data/1 cannot be read (KeyError)"}


# --- hostile files


def test_nothing_in_a_file_is_ever_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, content in hostile(marker).items():
        for protocol in range(6):
            stream = io.BytesIO()
            try:
                pickle.Pickler(stream, protocol).dump({"w": content})
            except (pickle.PicklingError, TypeError):
                continue
            try_to_read(with_pickle(tmp_path / f"{name}.pt", stream.getvalue()))
            assert not marker.exists(), (name, protocol)
    for name, pickled in opcodes(marker).items():
        try_to_read(with_pickle(tmp_path / f"{name}.pt", pickled))
        assert not marker.exists(), name
    # these files are what they are said to be
    for name, pickled in opcodes(marker).items():
        if name not in ("newobj", "newobj_ex", "nested"):  # these only make an object
            pickle.loads(pickled)
            assert marker.exists(), name
            marker.unlink()


def test_a_tensor_beside_a_hostile_object_is_still_read(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved(tmp_path, {"w": torch.ones(3), "x": Calls(os.system, f"touch {marker}")})
    assert read_torch_file(path).tensors["w"].tolist() == [1, 1, 1]
    assert not marker.exists()


def test_a_pickle_cannot_change_the_reader(tmp_path: Path) -> None:
    def build(name: str, state: dict[str, Any]) -> bytes:
        # GLOBAL name; its slot state: BUILD with (None, state)
        module, attribute = name.split(" ")
        return (
            f"\x80\x02c{module}\n{attribute}\n".encode("latin1")
            + b"N"
            + pickle.dumps(state, protocol=2)[2:-1]
            + b"\x86b."
        )

    defaults = {key: rebuild.__defaults__ for key, rebuild in REBUILDERS.items()}
    for name in (
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "collections OrderedDict",
        "collections Counter",
        "torch FloatStorage",
        "os system",
    ):
        state = {"__defaults__": (1, 2), "__call__": 3, "append": 4, "marked": 5}
        try_to_read(with_pickle(tmp_path / "x.pt", build(name, state)))
    for thing in (
        *REBUILDERS.values(),
        OrderedDict,
        Counter,
        inert_pickle.Inert,
        inert_pickle.StoredTensor,
    ):
        assert not hasattr(thing, "marked")
    assert {key: rebuild.__defaults__ for key, rebuild in REBUILDERS.items()} == defaults
    same_as_torch(saved(tmp_path, {"w": torch.ones(2)}))


def test_structures_that_never_end(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CheckpointUnreadable, match="structure"):
        read_torch_file(with_pickle(tmp_path / "loop.pt", pickle.dumps(loop, protocol=2)))


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((1000,), (1,), 0),
        ((2,), (1,), 10**12),
        ((2,), (-1,), 0),
        ((2,), (1,), -1),
        ((-2,), (1,), 0),
    ],
)
def test_a_tensor_that_reaches_out_of_its_storage(
    tmp_path: Path, shape: Any, stride: Any, offset: int
) -> None:
    class Tensor:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_tensor_v2
            return rebuild, (storage, offset, shape, stride, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if value is storage:
                return ("storage", torch.FloatStorage, "0", "cpu", 4)
            return None

    storage, stream = object(), io.BytesIO()
    Pickler(stream, 2).dump({"w": Tensor()})
    path = with_pickle(tmp_path / "x.pt", stream.getvalue(), **{"0": bytes(16)})
    found = read_torch_file(path)
    assert found.tensors == {}
    assert list(found.damaged) == ["w"]
