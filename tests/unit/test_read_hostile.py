"""Files that would run something, or fill the memory: a line each, and nothing more."""

from __future__ import annotations

import io
import pickle
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_pickles import Calls, hostile, opcodes, with_pickle

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.readers import torch_zip
from forensics.readers.known import reader_of
from sdc_guard.archive.inert_pickle import InertUnpickler
from sdc_guard.archive.torch_damage import LEGACY
from sdc_guard.errors import CheckpointUnreadable

PLACES = {
    "torch": "step-10.pt",
    "torch-legacy": "step-10.pth",
    "lightning": "epoch=0-step=10.ckpt",
    "deepspeed": "global_step10/mp_rank_00_model_states.pt",
    "megatron": "iter_0000010/mp_rank_00/model_optim_rng.pt",
}


def legacy_file(path: Path, pickled: bytes, keys: list[str] | None = None) -> Path:
    """A file in the layout of before 1.6 around this pickle."""
    about = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = [pickle.dumps(part, protocol=2) for part in (1001, about)]
    path.write_bytes(LEGACY + b"".join(parts) + pickled + pickle.dumps(keys or [], protocol=2))
    return path


def judge(path: Path) -> list[Checkpoint]:
    """Index, open, read and check: whatever a command does with a checkpoint."""
    found = index(path)
    for one in found:
        reader = reader_of(one.format)
        said = [*one.reasons, *one.notes, *one_line(partial(reader.check, one))]
        try:
            tensors = reader.open(one).tensors
        except CheckpointUnreadable as error:
            tensors = {}
            said.append(str(error))
        for stored in tensors.values():
            said += one_line(stored.read)
        assert not any("\n" in line for line in said)
    return found


def one_line(action: Callable[[], object]) -> list[str]:
    """What it says if it refuses."""
    try:
        action()
    except CheckpointUnreadable as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("format", list(PLACES))
def test_the_marker_is_never_made(tmp_path: Path, format: str) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "archive" / PLACES[format]
    path.parent.mkdir(parents=True)
    write = legacy_file if format == "torch-legacy" else with_pickle
    pickles = dict(opcodes(marker))
    for name, content in hostile(marker).items():
        try:
            pickles[name] = pickle.dumps({"w": content, "step": 10}, protocol=2)
        except (pickle.PicklingError, TypeError):
            continue
    assert len(pickles) > 12
    for name, pickled in pickles.items():
        write(path, pickled)
        (found,) = judge(tmp_path / "archive")
        assert (found.format, found.step) == (format, 10), name
        assert not marker.exists(), name
    pickle.loads(pickles["system"])  # it is what it is said to be
    assert marker.exists()


def test_a_hostile_object_does_not_hide_the_tensors(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "x": Calls(print, "hello"), "step": 5}
    for zipped in (True, False):
        torch.save(state, tmp_path / "s-5.pt", _use_new_zipfile_serialization=zipped)
        (found,) = judge(tmp_path)
        content = reader_of(found.format).open(found)
        assert content.tensors["w"].read().tolist() == [1, 1, 1]
        assert content.foreign == {"x": "__builtin__.print"}
        assert found.readable


def laughs(doublings: int, end: bytes) -> bytes:
    """Tuples, each of which holds the one before twice."""
    return b"\x80\x02}K\x01\x85" + b"2\x86" * doublings + end


BOMBS: dict[str, Callable[[], bytes]] = {
    # accepted by the standard library's unpickler, with 16 GiB of memory
    "memo": lambda: b"\x80\x02]r\xff\xff\xff\x7f.",
    "bytes": lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "bytearray": lambda: b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "text": lambda: b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x.",
    "frame": lambda: b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
    "long": lambda: b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "negative": lambda: b"\x80\x02\x8b\xff\xff\xff\xffx.",
    "digits": lambda: b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
    "key": lambda: laughs(60, b"K\x01s."),
    "set": lambda: laughs(60, b"\x85\x91."),
    "deep lists": lambda: b"\x80\x02" + b"]" * 10_000 + b"a" * 9_999 + b".",
    "deep key": lambda: b"\x80\x02}" + b")" + b"\x85" * 10_000 + b"K\x01s.",
    "deep objects": lambda: b"\x80\x02" + b"cx\ny\n" * 10_000 + b"\x85R" * 9_999 + b".",
    "deep states": lambda: b"\x80\x02" + b"cx\ny\n" * 10_000 + b"b" * 9_999 + b".",
    "marks": lambda: b"\x80\x02" + b"(" * 10_000 + b"t" * 10_000 + b".",
    "no end": lambda: b"\x80\x02" + b"N0" * 1000,
    "extension": lambda: b"\x80\x02\x82\x01.",
    "empty": lambda: b"",
    "nothing on the stack": lambda: b"\x80\x02R.",
}  # fmt: skip


@pytest.mark.parametrize("name", list(BOMBS))
def test_bombs(tmp_path: Path, name: str) -> None:
    started = time.process_time()
    for write in (with_pickle, legacy_file):
        judge(write(tmp_path / "s-1.pt", BOMBS[name]()))
    assert time.process_time() - started < 20  # not for ever; a second or less as a rule


def test_what_a_bomb_is_told_as(tmp_path: Path) -> None:
    for name in ("key", "set", "deep lists", "deep key", "bytes", "no end"):
        (found,) = index(with_pickle(tmp_path / "s-1.pt", BOMBS[name]()))
        assert not found.readable
        assert found.reasons[0].startswith("unreadable: the structure of the file is damaged")


def test_operations_and_copies_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdc_guard.archive.pickle_machine.MOST_OPERATIONS", 10_000)
    InertUnpickler(b"N0" * 4_000 + b"N.").load()
    with pytest.raises(pickle.UnpicklingError, match="10,000 operations"):
        InertUnpickler(b"N0" * 6_000 + b"N.").load()
    # a list of a thousand, and the same call for it again and again
    many = b"]q\x00(" + b"K\x01" * 1000 + b"e0" + b"ctorch\nSize\nh\x00\x85R0" * 20 + b"N."
    with pytest.raises(pickle.UnpicklingError, match="10,000 operations"):
        InertUnpickler(many).load()


def claim(path: Path, shape: Any, stride: Any, numel: int = 4, **records: bytes) -> Path:
    """A tensor of these claims, of a storage of four floats."""

    class Tensor:
        def __reduce__(self) -> Any:
            rebuild = torch._utils._rebuild_tensor_v2
            return rebuild, (storage, 0, shape, stride, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if value is storage:
                return ("storage", torch.FloatStorage, "0", "cpu", numel)
            return None

    storage, stream = object(), io.BytesIO()
    Pickler(stream, 2).dump({"w": Tensor(), "step": 1})
    return with_pickle(path, stream.getvalue(), **{"0": bytes(16), **records})


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((5,), (1,)),
        ((10**12,), (1,)),
        ((2,), (-1,)),
        ((2, 2), (1,)),
        ((-1,), (1,)),
    ],
)
def test_a_tensor_that_claims_more_than_there_is(tmp_path: Path, shape: Any, stride: Any) -> None:
    (found,) = index(claim(tmp_path / "s-1.pt", shape, stride))
    assert list(torch_zip.READER.check(found).damaged) == ["w"]
    with pytest.raises(CheckpointUnreadable, match="data/0 cannot be read"):
        torch_zip.READER.open(found).tensors["w"].read()


def test_a_tensor_that_repeats_what_is_stored_is_legal_and_not_expanded(tmp_path: Path) -> None:
    (found,) = index(claim(tmp_path / "s-1.pt", (10**12,), (0,)))
    checked = torch_zip.READER.check(found)
    assert (checked.damaged, checked.intact, checked.unchecked) == ({}, (), ("w",))
    assert "repeats 16 stored bytes into 4,000,000,000,000, not expanded" in checked.why["w"]
    with pytest.raises(CheckpointUnreadable, match=r"data/0 cannot be read.*repeats"):
        torch_zip.READER.open(found).tensors["w"].read()


@pytest.mark.parametrize("shape", [(1,) * 65, ("a",), (1.5,), 3])
def test_a_tensor_of_no_shape(tmp_path: Path, shape: Any) -> None:
    (found,) = index(claim(tmp_path / "s-1.pt", shape, (1,)))
    assert not found.readable


def test_a_legacy_storage_that_claims_more_than_there_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(claim(tmp_path / "s-1.pt", (4,), (1,), numel=2**60)) as archive:
        pickled = archive.read("archive/data.pkl")
    (found,) = index(legacy_file(tmp_path / "s-1.pt", pickled, ["0"]))
    assert "truncated" in found.reasons[0]
    assert f"of {2**62:,}"[:12] in found.reasons[0]


def test_packed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = claim(tmp_path / "s-1.pt", (4,), (1,))
    packed = tmp_path / "s-2.pt"
    with zipfile.ZipFile(sound) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr("archive/data/1", bytes(10_000_000))
    (found,) = index(packed)  # packed again by somebody: read all the same
    assert torch_zip.READER.check(found).intact == ("w",)
    assert torch_zip.READER.open(found).tensors["w"].read().tolist() == [0, 0, 0, 0]
    content = bytearray(packed.read_bytes())
    place = content.rindex(b"PK\x01\x02", 0, content.rindex(b"archive/data/1"))
    content[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)  # bytes when unpacked
    packed.write_bytes(content)
    (found,) = index(packed)
    said = torch_zip.READER.check(found).damaged
    assert "cannot hold 4,294,967,294" in said["data/1"]
    monkeypatch.setattr("sdc_guard.archive.torch_records.MOST_BYTES", 10)
    (found,) = index(sound)
    assert "its structure alone has" in found.reasons[0]


def test_records_that_lie_over_each_other(tmp_path: Path) -> None:
    path = claim(tmp_path / "s-1.pt", (4,), (1,), **{"1": bytes(5000)})
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02", 0, content.rindex(b"archive/data/0"))
    content[place + 20 : place + 28] = struct.pack("<II", 5000, 5000)
    path.write_bytes(content)
    (found,) = index(path)
    assert "its records overlap" in found.reasons[0]
