"""Hostile and broken `.metadata` and items: nothing runs, one kind of error, all ends."""

from __future__ import annotations

import builtins
import os
import pickle
import random
import resource
import subprocess
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_directories import change_metadata, in_chunks, saved, training
from hypothesis import given
from hypothesis import strategies as st

from forensics.checkpoint import Checkpoint
from forensics.readers.dcp import READER
from sdc_guard.errors import CheckpointUnreadable

SHARD = "__0_0.distcp"
CALLS = [
    (os.system, "touch {}"),
    (subprocess.check_call, ["touch", "{}"]),
    (builtins.exec, "open({!r}, 'w').close()"),
    (builtins.eval, "open({!r}, 'w').close()"),
    (builtins.open, "{}", "w"),
    (os.mkdir, "{}"),
]


class Calls:
    """Pickled as a call of a function that makes a marker file."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Sets(Calls):
    """Likewise, with a state and items that are set on what the call gives."""

    def __reduce__(self) -> Any:
        return (*self.call, {"__class__": "x"}, iter([1]), iter([(2, 3)]))


def call(kind: type[Calls], which: tuple[Any, ...], marker: Path) -> Calls:
    def filled(argument: Any) -> Any:
        if isinstance(argument, list):
            return [filled(one) for one in argument]
        return argument.format(str(marker)) if "{!r}" not in argument else argument.replace(
            "{!r}", repr(str(marker))
        )  # fmt: skip

    return kind(which[0], *(filled(argument) for argument in which[1:]))


def use(path: Path) -> list[Checkpoint]:
    """Do everything with a directory that a search does; each error is one line."""
    found = READER.find(path)
    for checkpoint in found:
        assert all("\n" not in reason for reason in (*checkpoint.reasons, *checkpoint.notes))
        with unless_unreadable():
            content = READER.open(checkpoint)
            for tensor in content.tensors.values():
                with unless_unreadable():
                    read = tensor.read()
                    assert (read.dtype, tuple(read.shape)) == (tensor.dtype, tensor.shape)
            READER.check(checkpoint)
    return found


@contextmanager
def unless_unreadable() -> Iterator[None]:
    """Take CheckpointUnreadable for an answer."""
    told = ""
    try:
        yield
    except CheckpointUnreadable as error:
        told = str(error)
    assert "\n" not in told


@pytest.mark.parametrize("which", CALLS, ids=lambda which: which[0].__name__)
@pytest.mark.parametrize("kind", [Calls, Sets])
def test_a_hostile_metadata_runs_nothing(
    tmp_path: Path, which: tuple[Any, ...], kind: type[Calls]
) -> None:
    marker, folder = tmp_path / "marker", saved(tmp_path / "step-7", {"w": torch.ones(2)})
    hostile = call(kind, which, marker)

    def everywhere(metadata: Any) -> None:
        metadata.planner_data = {"w": hostile}
        metadata.storage_meta = hostile
        metadata.state_dict_metadata["w"].properties.requires_grad = hostile
        for place in metadata.storage_data.values():
            place.more = hostile

    change_metadata(folder, everywhere)
    (checkpoint,) = use(tmp_path)
    assert checkpoint.readable
    assert READER.open(checkpoint).tensors["w"].read().tolist() == [1.0, 1.0]
    (folder / ".metadata").write_bytes(pickle.dumps(hostile))
    (checkpoint,) = use(tmp_path)
    assert not checkpoint.readable
    assert not marker.exists()


@pytest.mark.parametrize("which", CALLS, ids=lambda which: which[0].__name__)
def test_hostile_items_run_nothing(tmp_path: Path, which: tuple[Any, ...]) -> None:
    marker = tmp_path / "marker"
    hostile = call(Calls, which, marker)
    state = {"step": hostile, "more": [hostile, 3], "ok": 4, "keys": OrderedDict(a=hostile)}
    folder = saved(tmp_path / "step-7", {"w": torch.ones(2), "train_state": (hostile, state)})
    torch.save({"iteration": hostile}, folder / "common.pt")
    (checkpoint,) = use(tmp_path)
    content = READER.open(checkpoint)
    assert content.numbers == {"train_state.1.more.1": 3, "train_state.1.ok": 4}
    assert len(content.foreign) == 5
    assert checkpoint.step == 7
    assert not marker.exists()


def test_the_hostile_files_are_hostile(tmp_path: Path) -> None:
    """DCP's own reader makes the file that ours does not."""
    marker, folder = tmp_path / "marker", saved(tmp_path / "step-7", {"w": torch.ones(2)})

    def planner(metadata: Any) -> None:
        metadata.planner_data = call(Calls, CALLS[0], marker)

    change_metadata(folder, planner)
    dcp.FileSystemReader(folder).read_metadata()
    assert marker.exists()


BOMBS = {
    "memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "text memo": b"Np2147483647\n.",
    "bytes": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
    "bytearray": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"x.",
    "frame": b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.",
    "hash": b"\x80\x04)" + b"2\x86" * 200 + b"}\x94(h\x00Nu.",
    "nested": b"\x80\x04" + b"]" * 20_000 + b"a" * 19_999 + b".",
    "long": b"\x80\x02\x8b" + (1 << 30).to_bytes(4, "little") + b"x.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_stay_small_wherever_they_are(tmp_path: Path, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = saved(tmp_path / "step-7", {"w": torch.ones(2), "lr": 0.5})
    replace_pickle(folder, BOMBS[name])
    (checkpoint,) = use(tmp_path)
    assert READER.open(checkpoint).tensors["w"].read().tolist() == [1.0, 1.0]
    (folder / ".metadata").write_bytes(BOMBS[name])
    (checkpoint,) = use(tmp_path)
    assert not checkpoint.readable
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def replace_pickle(folder: Path, content: bytes) -> None:
    """Let the item "lr" be a file of torch.save's whose structure is this."""
    torch.save(0.25, folder / "x.pt")
    with zipfile.ZipFile(folder / "x.pt") as old, zipfile.ZipFile(folder / "y.pt", "w") as new:
        for record in old.infolist():
            inside = content if record.filename.endswith("data.pkl") else old.read(record)
            new.writestr(record.filename, inside)
    item = (folder / "y.pt").read_bytes()
    at = (folder / SHARD).stat().st_size
    with (folder / SHARD).open("ab") as shard:
        shard.write(item)

    def moved(metadata: Any) -> None:
        for index, place in metadata.storage_data.items():
            if index.fqn == "lr":
                place.offset, place.length = at, len(item)

    change_metadata(folder, moved)


def test_shared_parts_with_more_paths_than_bytes_end(tmp_path: Path) -> None:
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]
    folder = saved(tmp_path / "step-7", {"w": torch.ones(2), "shared": (shared,)})
    (checkpoint,) = use(folder)
    content = READER.open(checkpoint)
    assert content.foreign["shared"] == "more than 10,000 values: not all are listed"
    assert len(content.numbers) <= 10_000


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../other", "a/../../b", "", "/dev/zero", "\ud800"]
)
def test_no_file_outside_of_the_directory_is_read(tmp_path: Path, path: str) -> None:
    folder = saved(tmp_path / "step-7", {"w": torch.ones(2)})

    def elsewhere(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = path

    change_metadata(folder, elsewhere)
    (checkpoint,) = use(folder)
    assert not checkpoint.readable
    assert ".metadata says " in checkpoint.reasons[0]


def test_tensors_larger_than_the_files_are_never_made(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", {"w": torch.ones(4), "v": torch.ones(4)})

    def huge(metadata: Any) -> None:
        for entry in metadata.state_dict_metadata.values():
            entry.size = torch.Size([1 << 60])
            (chunk,) = entry.chunks
            chunk.sizes = torch.Size([1 << 60])
        metadata.state_dict_metadata["v"].size = torch.Size([1 << 20, 1 << 60])
        chunk.offsets, chunk.sizes = torch.Size([0, 0]), torch.Size([1 << 20, 1 << 60])

    change_metadata(folder, huge)
    (checkpoint,) = use(folder)
    with pytest.raises(CheckpointUnreadable, match="larger than the bytes that hold it"):
        READER.open(checkpoint).tensors["w"].read()


def test_chunks_that_share_their_bytes_make_no_larger_tensor(tmp_path: Path) -> None:
    """Sixteen chunks of 16 KiB, all of which the metadata lays into the bytes of the first."""
    boxes = [((4096 * n,), (4096,)) for n in range(16)]
    folder = in_chunks(tmp_path / "step-7", torch.ones(16 * 4096), boxes)

    def shared(metadata: Any) -> None:
        first = next(iter(metadata.storage_data.values()))
        metadata.storage_data = dict.fromkeys(metadata.storage_data, first)

    change_metadata(folder, shared)
    (checkpoint,) = use(folder)
    with pytest.raises(CheckpointUnreadable, match="larger than the bytes that hold it"):
        READER.open(checkpoint).tensors["w"].read()


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", {"w": torch.ones(2)})
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    (checkpoint,) = use(folder)
    assert "__0_0.distcp is missing" in checkpoint.reasons[0]
    (folder / ".metadata").unlink()
    os.mkfifo(folder / ".metadata")
    (checkpoint,) = use(folder)
    assert "no file" in checkpoint.reasons[0]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = training() | {"train_state": {"step": torch.tensor(7)}}
    return saved(tmp_path_factory.mktemp("sound") / "step-7", state, thread_count=2)


@given(st.data())
def test_any_damage_of_the_metadata_is_one_error(sound: Path, data: st.DataObject) -> None:
    original = (sound / ".metadata").read_bytes()
    content = bytearray(original)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            bit = data.draw(st.integers(0, 8 * len(content) - 1))
            content[bit // 8] ^= 1 << bit % 8
    (sound / ".metadata").write_bytes(bytes(content))
    try:
        use(sound)
    finally:
        (sound / ".metadata").write_bytes(original)


def test_any_damage_of_a_shard_is_one_error(sound: Path, seed: int) -> None:
    generator = random.Random(seed)
    shard = sound / SHARD
    original = shard.read_bytes()
    for _ in range(25):
        content = bytearray(original)
        for _ in range(generator.choice([1, 1, 5, 200])):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        shard.write_bytes(bytes(content))
        use(sound)
    shard.write_bytes(original)
    assert READER.check(READER.find(sound)[0]).damaged == {}
