"""A read that fails shows nothing of the bytes: nothing is called damaged, and nothing clean."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.oracles.integrity import read_bytes
from forensics.readers import safetensors_tensors
from forensics.scanning import scanned
from forensics.unforeseen import unforeseen
from sdc_guard.archive.compare import check_bytes, checksum
from sdc_guard.archive.manifest import Manifest, TensorEntry
from sdc_guard.archive.torch_file import read_torch_file
from sdc_guard.archive.torch_records import TorchRecords
from sdc_guard.digest import digest_tensor
from sdc_guard.errors import ReadFailed

STATE = {"a": torch.arange(600.0), "b": torch.ones(500)}
FAILURES = {
    "EIO": partial(OSError, errno.EIO, "Input/output error"),
    "ESTALE": partial(OSError, errno.ESTALE, "Stale file handle"),
    "memory": MemoryError,
}
failure = pytest.mark.parametrize("fails", FAILURES.values(), ids=FAILURES)


def fail_at(monkeypatch: pytest.MonkeyPatch, record: str, fails: Callable[[], Exception]) -> None:
    """Let every read of one record of a torch.save file fail."""
    for name in ("read", "chunks"):
        real = getattr(TorchRecords, name)

        def reads(self: TorchRecords, at: str, *places: Any, real: Any = real) -> Any:
            if at == record:
                raise fails()
            return real(self, at, *places)

        monkeypatch.setattr(TorchRecords, name, reads)


def saved(folder: Path) -> Checkpoint:
    torch.save(STATE, folder / "step-1.pt")
    (found,) = index(folder)
    return found


@failure
def test_a_record_that_cannot_be_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Exception]
) -> None:
    one = saved(tmp_path)
    fail_at(monkeypatch, "data/0", fails)
    read = read_bytes(one)
    assert read.integrity is not None
    assert (read.judgement.verdict, read.judgement.stored_bytes) == ("untestable", False)
    assert (read.integrity.damaged, read.integrity.intact) == ({}, ("b",))
    assert "record data/0 cannot be read: " in read.reason
    assert "()" not in read.reason
    (found,) = scanned([one])
    assert found.status == "untested"


def test_what_is_damaged_beside_it_stays_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = saved(tmp_path)
    content = bytearray(one.path.read_bytes())
    content[content.index(STATE["b"].numpy().tobytes()) + 7] ^= 0x40
    one.path.write_bytes(content)
    fail_at(monkeypatch, "data/0", FAILURES["EIO"])
    judged = read_bytes(one).judgement
    assert (judged.verdict, judged.reason) == ("corrupt", "b: CRC mismatch in record data/1")


def test_a_damaged_directory_is_damage_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = saved(tmp_path)
    fail_at(monkeypatch, "data/0", partial(OSError, errno.EINVAL, "Invalid argument"))
    assert read_bytes(one).judgement.verdict == "corrupt"


@failure
def test_a_tensor_of_safetensors_likewise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Exception]
) -> None:
    save_file(STATE, tmp_path / "step-1.safetensors")
    (one,) = index(tmp_path)

    class Failing:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def seek(self, at: int) -> int:
            return int(self._file.seek(at))

        def readinto(self, _: Any) -> int:
            raise fails()

    real = safetensors_tensors.open_unbuffered
    monkeypatch.setattr(safetensors_tensors, "open_unbuffered", lambda path: Failing(real(path)))
    read = read_bytes(one)
    assert read.judgement.verdict == "untestable"
    assert read.integrity is None or read.integrity.damaged == {}
    assert "cannot be read: " in read.reason


def guarded(folder: Path) -> Manifest:
    torch.save(STATE, folder / "state.pt")
    entries = {name: TensorEntry.of(digest_tensor(one)) for name, one in STATE.items()}
    file = folder / "state.pt"
    return Manifest(
        1, 1, 1, "clean", (), "state.pt", file.stat().st_size, entries, 0.0, xxh3=checksum(file)
    )


@failure
def test_a_file_that_its_own_checksum_proves_is_never_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[], Exception]
) -> None:
    manifest = guarded(tmp_path)
    fail_at(monkeypatch, "data/0", fails)
    assert check_bytes(tmp_path, manifest, sealed=True).sound  # it is not held in memory
    with pytest.raises(ReadFailed, match="record data/0 cannot be read"):
        check_bytes(tmp_path, manifest)
    with pytest.raises(ReadFailed):
        read_torch_file(tmp_path / "state.pt")


def test_any_other_bit_is_still_found_when_it_is_sealed(tmp_path: Path) -> None:
    manifest = guarded(tmp_path)
    file = tmp_path / "state.pt"
    content = file.read_bytes()
    for place in range(0, len(content), 97):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not check_bytes(tmp_path, manifest, sealed=True).sound, place


def test_what_nobody_foresaw_is_told_with_its_place() -> None:
    def wrong() -> None:
        raise TypeError("no such\nthing")

    with pytest.raises(TypeError) as raised:
        wrong()
    said = unforeseen(raised.value, "reading")
    assert said.startswith("unreadable: reading it failed (TypeError in test_read_failures.py:")
    assert said.endswith(": no such thing; a fault of sdc-bisect, please report it)")
    assert unforeseen(MemoryError(), "reading") == (
        "unreadable: cannot be read: not enough memory on this machine"
    )
    assert "package is missing (No module named 'x')" in unforeseen(
        ImportError("No module named 'x'"), "reading"
    )


def test_the_cause_stands_beside_an_old_doubt(tmp_path: Path) -> None:
    one = replace(saved(tmp_path), reasons=("an old doubt",))
    one.path.unlink()
    (found,) = scanned([one])
    assert found.reasons[0] == "an old doubt"
    assert len(found.reasons) == 2
