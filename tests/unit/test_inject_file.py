"""Faults in a file: the right byte or element, on the record, and back again."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard import Guard, load_checkpoint
from sdc_guard.archive.torch_file import read_torch_file
from sdc_guard.archive.torch_places import tensor_places
from sdc_guard.cli import main
from sdc_guard.errors import CheckpointMismatch, CheckpointUnreadable, InjectionError
from sdc_guard.inject.fault import Fault, Touched
from sdc_guard.inject.file import corrupt_file, revert_file
from sdc_guard.inject.file_record import read_injections, record_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A torch file with strided, shared and odd tensors."""
    base = torch.arange(24.0)
    content = {
        "whole": base,
        "turned": base.view(4, 6).t(),
        "part": base[6:12].view(2, 3),
        "half": torch.arange(5).bfloat16(),
        "flag": torch.tensor([True, False]),
        "odd": torch.arange(3, dtype=torch.int8),
    }
    path = tmp_path / "state.pt"
    torch.save({"model": content, "step": 7}, path)
    return path


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return read_torch_file(path).tensors


def bytes_that_differ(one: bytes, other: bytes) -> dict[int, tuple[int, int]]:
    assert len(one) == len(other)
    return {at: (a, b) for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}


def test_the_places_are_those_of_the_bytes(saved: Path) -> None:
    content = saved.read_bytes()
    for name, place in tensor_places(saved).items():
        storage = torch.frombuffer(
            bytearray(content[place.start : place.start + place.size]), dtype=place.stored.dtype
        )
        stored = place.stored
        found = storage.as_strided(stored.shape, stored.stride, stored.offset)
        assert torch.equal(found, tensors(saved)[name]), name


@given(offset=st.integers(0, 400), bit=st.integers(0, 7), seed=st.integers(0, 9))
def test_a_byte_and_back(tmp_path: Path, offset: int, bit: int, seed: int) -> None:
    path = tmp_path / "file"
    sound = bytes((7 * x) % 256 for x in range(401))
    path.write_bytes(sound)
    injection = corrupt_file(path, Fault("file", 0, index=offset, bit=bit), seed)
    assert bytes_that_differ(sound, path.read_bytes()) == {
        offset: (sound[offset], sound[offset] ^ 1 << bit)
    }
    assert injection.bytes == (Touched(offset, sound[offset], sound[offset] ^ 1 << bit),)
    assert read_injections(path) == [injection]
    assert revert_file(path) == (1, [])
    assert path.read_bytes() == sound
    assert not record_of(path).exists()


@pytest.mark.parametrize(
    ("tensor", "index", "bit"),
    [("turned", (5, 3), 30), ("part", 4, 0), ("half", 2, 15), ("flag", 1, 0), ("odd", 2, 7)],
)
def test_an_element_of_a_tensor(saved: Path, tensor: str, index: Any, bit: int) -> None:
    before, content = tensors(saved), saved.read_bytes()
    injection = corrupt_file(saved, Fault("file", 0, f"model.{tensor}", index, bit=bit), 0)
    (word,) = injection.touched
    assert word.bits == [bit]
    assert bytes_that_differ(content, saved.read_bytes()) == {
        byte.index: (byte.before, byte.after) for byte in injection.bytes
    }
    read = read_torch_file(saved)
    changed = before[f"model.{tensor}"] != read.tensors[f"model.{tensor}"]
    assert changed.flatten().nonzero().tolist() == [[word.index]]
    # the checksums stay, as when a disk goes wrong
    assert any("CRC" in reason for reason in read.damaged.values())
    revert_file(saved)
    assert saved.read_bytes() == content


def test_open_choices_are_drawn_by_the_seed(saved: Path, tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((1, 1, 2)):
        out = tmp_path / str(number)
        found.append(corrupt_file(saved, Fault("file", 0, "model.*"), seed, out=out).touched)
        assert zipfile.is_zipfile(out)
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_several_injections_and_bytes_that_were_written_to_since(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    corrupt_file(path, Fault("file", 0, index=3, bit=1), 0)
    corrupt_file(path, Fault("file", 0, index=3, bit=2), 0)
    corrupt_file(path, Fault("file", 0, index=9, change="set", value=200), 0)
    assert (path.read_bytes()[3], path.read_bytes()[9]) == (6, 200)
    truth = json.loads(record_of(path).read_text())
    assert truth["schema"]["name"] == "sdc-guard.injected-file"
    assert [x["bytes"][0]["index"] for x in truth["injections"]] == [3, 3, 9]
    with path.open("r+b") as file:
        file.seek(9)
        file.write(b"\x05")
    assert revert_file(path) == (2, [9])
    assert (path.read_bytes()[3], path.read_bytes()[9]) == (0, 5)
    assert len(read_injections(path)) == 1


def test_what_cannot_be_done_leaves_no_trace(saved: Path, tmp_path: Path) -> None:
    out, content = tmp_path / "out", saved.read_bytes()
    for fault in (
        Fault("file", 0, index=10**9),
        Fault("file", 0, "model.nothing"),
        Fault("file", 0, "model.part", 6),
        Fault("file", 0, "model.half", bit=16),
    ):
        with pytest.raises(InjectionError):
            corrupt_file(saved, fault, 0, out=out)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["state.pt"]
    assert saved.read_bytes() == content


@pytest.mark.parametrize("name", ["file.injected.json", "file", "out"])
def test_a_disk_that_is_full_leaves_file_and_record_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, out = tmp_path / "file", tmp_path / "out" if name == "out" else None
    path.write_bytes(bytes(8))
    corrupt_file(path, Fault("file", 0, index=1, bit=0), 0)
    before = {x.name: x.read_bytes() for x in tmp_path.iterdir()}
    synced = os.fsync
    full = [True]

    def fsync(descriptor: int) -> None:
        written = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if full and (written == name or written.startswith(f".{name}.")):
            full.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InjectionError, match="cannot be written: No space left on device") as error:
        corrupt_file(path, Fault("file", 0, index=5, bit=0), 0, out=out)
    assert error.value.where == str(out or path)
    assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == before


def test_a_record_that_cannot_be_written_is_known_before_the_file_is_touched(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    record_of(path).mkdir()
    with pytest.raises(InjectionError, match="the record of injections cannot be read: Is a dir"):
        corrupt_file(path, Fault("file", 0, index=5, bit=0), 0)
    assert path.read_bytes() == bytes(8)
    (tmp_path / "out.injected.json").write_text("of another copy")
    with pytest.raises(InjectionError, match=r"there already: .*out.injected.json"):
        corrupt_file(path, Fault("file", 0, index=5, bit=0), 0, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_process_recorded_and_did_not_write_is_nothing_to_put_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    corrupt_file(path, Fault("file", 0, index=5, bit=0), 0)
    path.write_bytes(bytes(8))
    assert revert_file(path) == (0, [])
    assert not record_of(path).exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"fault": None}, {"fault": {}}, {"fault": []}, {"bytes": None}, {"bytes": [3]},
        {"bytes": [{"index": 5, "before": 999, "after": 1}]},
        {"bytes": [{"index": -5, "before": 9, "after": 1}]},
        {"bytes": [{"index": 10**30, "before": 9, "after": 1}]},
        {"touched": [{"index": "5", "before": 9, "after": 1}]}, {"other": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_is_one_line(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    corrupt_file(path, Fault("file", 0, index=5, bit=0), 0)
    content = path.read_bytes()
    truth = json.loads(record_of(path).read_text())
    truth["injections"][0] |= damage
    for text in (json.dumps(truth), "[]", '{"injections":[null]}', "[" * 100_000, "9" * 5000):
        record_of(path).write_text(text)
        for again in (revert_file, lambda x: corrupt_file(x, Fault("file", 0, index=5), 0)):
            with pytest.raises(InjectionError, match="the record of injections is damaged"):
                again(path)
    assert path.read_bytes() == content


def test_the_command(saved: Path, tmp_path: Path) -> None:
    def run(*arguments: Any) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["inject", "--file", *map(str, arguments)])
        return done.exit_code, done.output

    done = CliRunner().invoke(main, ["inject", "--in-place", "plan.toml", "--", "true"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert "--in-place without --file (leave it out)" in done.output
    content = saved.read_bytes()
    for arguments, message in (
        ((saved,), "where to? (-o COPY, or --in-place)"),
        ((saved, "--in-place", "-o", "x"), "where to?"),
        ((saved, "--in-place", "--index", 3), "--index without --tensor"),
        ((saved, "--in-place", "--bits", "3,x"), "no bits: 3,x"),
        ((saved, "--revert"), "there is no record"),
        ((saved, "--in-place", "--again"), "--again with --file (leave it out)"),
        ((tmp_path, "--in-place"), "a folder: name one of its files"),
        ((tmp_path / "no", "--in-place"), "no such file"),
    ):
        code, output = run(*arguments)
        assert (code, output.count("\n")) == (2, 1), output
        assert message in output
    assert saved.read_bytes() == content
    code, output = run(saved, "--in-place", "--tensor", "model.half", "--index", 1, "--bits", "3,4")
    assert code == 0
    assert "[1] of model.half (bfloat16) 0x3f80 → 0x3f98" in output
    code, output = run(saved, "--revert")
    assert code == 0
    assert saved.read_bytes() == content
    code, output = run(saved, "-o", tmp_path / "copy", "--offset", 5, "--json")
    assert code == 0
    assert json.loads(output)["bytes"][0]["index"] == 5


def test_a_checkpoint_that_is_hit_is_refused_and_loads_when_it_is_put_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    with Guard(model, torch.optim.AdamW(model.parameters()), run=tmp_path) as guard:
        model(torch.ones(2, 4)).sum().backward()
        folder = guard.checkpoint({"model": model}, 0)
    assert folder is not None
    for fault in (Fault("file", 0), Fault("file", 0, "model.weight", change="zero")):
        injection = corrupt_file(folder / "state.pt", fault, 0)
        assert any(byte.before != byte.after for byte in injection.bytes)
        with pytest.raises((CheckpointMismatch, CheckpointUnreadable)):
            load_checkpoint(folder)
        revert_file(folder / "state.pt")
        load_checkpoint(folder)
