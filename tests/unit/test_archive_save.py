"""Saving, checking and loading checkpoints: what comes back is what went in, or it is said."""

from __future__ import annotations

import json
import logging
import os
import random
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sdc_guard import load_checkpoint
from sdc_guard.archive import save as save_module
from sdc_guard.archive.compare import check_bytes, checksum
from sdc_guard.archive.manifest import FILE, Manifest, TensorEntry
from sdc_guard.archive.restore import checkpoints
from sdc_guard.archive.save import LATEST, expected_digests, save_checkpoint, tensors_in
from sdc_guard.digest import digest_tensor
from sdc_guard.digest.reference import words
from sdc_guard.errors import ArchiveIncomplete, CheckpointMismatch, CheckpointUnreadable
from sdc_guard.store.run_file import Attempt, RunFile


def payload_of(step: int = 1) -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "half": torch.randn(9).to(torch.bfloat16),
        "double": torch.randn(7, dtype=torch.float64).t(),
    }


def proofs(payload: Mapping[str, Any]) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry.of(digest_tensor(tensor)) for name, tensor in tensors_in(payload).items()
    }


def save(
    archive: Path, payload: Mapping[str, Any], *, attempt: int = 1, doubts: tuple[str, ...] = ()
) -> Path:
    folder, _ = save_checkpoint(
        archive, payload["step"], attempt, payload, proofs(payload), list(doubts)
    )
    return folder


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    a, b = tensors_in(one), tensors_in(other)
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype
        and a[name].shape == b[name].shape
        and torch.equal(words(a[name]), words(b[name]))
        for name in a
    )


def test_round_trip_bit_by_bit(tmp_path: Path) -> None:
    payload = payload_of(20)
    payload["model"]["0.bias"].view(torch.int32)[:2] = torch.tensor([0x7FA00001, -(2**31)])
    folder = save(tmp_path / "archive", payload)
    assert folder == tmp_path / "archive" / "step=000020"
    manifest = Manifest.read(folder)
    assert (manifest.step, manifest.attempt, manifest.status) == (20, 1, "clean")
    assert manifest.reasons == ()
    assert manifest.bytes == (folder / manifest.file).stat().st_size
    assert set(manifest.tensors) == set(tensors_in(payload))
    assert check_bytes(folder, manifest).sound
    for path in (folder, folder / "state.pt", str(folder), folder.parent, tmp_path):
        loaded = load_checkpoint(path)
        assert same(loaded, payload)
        assert loaded["step"] == 20
    assert (tmp_path / "archive" / LATEST).read_text() == "step=000020\n"
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    model.load_state_dict(loaded["model"])
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_manifest_keeps_every_bit_of_a_digest(tmp_path: Path) -> None:
    payload = payload_of()
    manifest = Manifest.read(save(tmp_path, payload))
    for name, tensor in tensors_in(payload).items():
        assert manifest.tensors[name].digest == digest_tensor(tensor)


def data_places(path: Path) -> list[tuple[int, int]]:
    """Where the tensors' bytes lie in the file: (start, length)."""
    places = []
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if "/data/" in info.filename and info.file_size:
                file.seek(info.header_offset)
                header = file.read(30)
                names = int.from_bytes(header[26:28], "little")
                extra = int.from_bytes(header[28:30], "little")
                places.append((info.header_offset + 30 + names + extra, info.file_size))
    return places


def test_one_flipped_bit_in_any_tensor_is_found_and_located(tmp_path: Path, seed: int) -> None:
    payload = payload_of()
    folder = save(tmp_path, payload)
    manifest = Manifest.read(folder)
    path = folder / manifest.file
    sound, random_ = path.read_bytes(), random.Random(seed)
    places = data_places(path)
    tensors = tensors_in(payload)
    assert len(places) == len(tensors)
    hit = set()
    for _ in range(30):
        start, length = random_.choice(places)
        content = bytearray(sound)
        place, bit = start + random_.randrange(length), random_.randrange(8)
        content[place] ^= 1 << bit
        path.write_bytes(content)
        found = check_bytes(folder, manifest)
        assert not found.sound
        (mismatch,) = found.mismatches
        assert list(found.crc) == [mismatch.name]
        assert found.missing == ()
        # which element, which bit: from the tensor itself
        row = words(tensors[mismatch.name])
        size = row.element_size()
        assert mismatch.change is not None
        assert mismatch.change.index == (place - start) // size
        assert mismatch.change.bits == [8 * ((place - start) % size) + bit]
        mask = (1 << 8 * size) - 1
        assert mismatch.change.before == int(row[mismatch.change.index]) & mask
        assert mismatch.change.after == mismatch.change.before ^ 1 << mismatch.change.bits[0]
        reasons = "\n".join(found.reasons())
        assert f"element {mismatch.change.index}, bits {mismatch.change.bits}" in reasons
        with pytest.raises(CheckpointMismatch, match="not those that were saved") as caught:
            load_checkpoint(folder)
        assert mismatch.name in str(caught.value)
        hit.add(mismatch.name)
    assert len(hit) > 5
    path.write_bytes(sound)
    assert check_bytes(folder, manifest).sound


def test_several_flips_are_found_and_not_called_one(tmp_path: Path) -> None:
    payload = payload_of()
    folder = save(tmp_path, payload)
    path = folder / "state.pt"
    content = bytearray(path.read_bytes())
    start, length = max(data_places(path), key=lambda place: place[1])
    for place in (start, start + length // 2):
        content[place] ^= 1
    path.write_bytes(content)
    found = check_bytes(folder, Manifest.read(folder))
    assert [mismatch.change for mismatch in found.mismatches] == [None]
    assert found.reasons()[-1].endswith("bytes differ from the recorded digest")


@pytest.mark.parametrize("size", [0, 10, 0.5, -1])
def test_a_cut_file_is_another_one_and_is_not_loaded(tmp_path: Path, size: float) -> None:
    folder = save(tmp_path, payload_of())
    path = folder / "state.pt"
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2 if size == 0.5 else int(size)])
    manifest = Manifest.read(folder)
    left = len(path.read_bytes())
    said = f"{'truncated' if left else 'empty'} ({left:,} of {len(sound):,} bytes)"
    found = check_bytes(folder, manifest)
    assert (found.sound, found.reasons()) == (False, [said])
    with pytest.raises(CheckpointUnreadable) as caught:
        load_checkpoint(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_folder(tmp_path: Path) -> None:
    folder = save(tmp_path, payload_of())
    manifest = Manifest.read(folder)
    (folder / "state.pt").unlink()
    with pytest.raises(CheckpointUnreadable, match="no checkpoint file"):
        check_bytes(folder, manifest)
    with pytest.raises(CheckpointUnreadable, match=r"no manifest\.json"):
        load_checkpoint(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArchiveIncomplete, match="no clean checkpoint among 0"):
        load_checkpoint(tmp_path / "empty")


def test_a_changed_number_in_the_structure_is_no_clean_checkpoint(tmp_path: Path) -> None:
    payload = payload_of()
    folder = save(tmp_path, payload)
    path = folder / "state.pt"
    content = bytearray(path.read_bytes())
    lr = content.index(b"\x3f\xb9\x99\x99\x99\x99\x99\x9a")  # 0.1, as pickle writes a float
    content[lr + 1] ^= 0x10
    path.write_bytes(content)
    found = check_bytes(folder, Manifest.read(folder))
    assert found.mismatches == ()
    assert list(found.crc) == ["data.pkl"]
    with pytest.raises(CheckpointMismatch, match=r"data\.pkl"):
        load_checkpoint(folder)


def test_a_tensor_that_is_not_what_was_trained_is_suspect(tmp_path: Path) -> None:
    payload = payload_of()
    expected = proofs(payload)
    payload["model"]["0.weight"].view(torch.int32)[2, 3] ^= 1 << 22
    folder, manifest = save_checkpoint(tmp_path, 1, 1, payload, expected, [])
    assert manifest.status == "suspect"
    assert manifest.reasons == (
        "model.0.weight: bytes differ from the recorded digest (element 15, bits [22])",
    )
    expected["model.gone"] = TensorEntry.of(digest_tensor(torch.ones(1)))
    _, manifest = save_checkpoint(tmp_path, 2, 1, payload, expected, ["a doubt"])
    assert manifest.reasons[:2] == ("a doubt", "model.gone: not in the file")
    with pytest.raises(ArchiveIncomplete, match="no clean checkpoint among 2"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointMismatch):
        load_checkpoint(folder)


def test_traced_state_must_have_the_digest_of_the_trace() -> None:
    weight, moment, buffer = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    payload = {"model": {"w": weight, "tied": weight, "b": buffer}, "optimizer": [moment]}
    recorded = {
        ("param", 7): digest_tensor(weight),
        ("exp_avg", 7): digest_tensor(torch.zeros(1)),
    }
    state = {("param", 7): weight, ("exp_avg", 7): moment, ("exp_avg_sq", 7): torch.empty(0)}
    weight[0, 0] += 1  # after the trace has seen it
    entries = expected_digests(payload, state, recorded, {7: "layer.w"})
    assert entries["model.w"] == TensorEntry.of(recorded["param", 7], "param", "layer.w")
    assert entries["model.tied"] == entries["model.w"]
    assert entries["optimizer.0"].digest == recorded["exp_avg", 7]
    assert entries["model.b"] == TensorEntry.of(digest_tensor(buffer))


@pytest.mark.parametrize("room", [0, 2_000])
def test_a_full_disk_leaves_the_older_checkpoints(tmp_path: Path, no_space: Any, room: int) -> None:
    first = save(tmp_path, payload_of(10))
    big = payload_of(20) | {"big": torch.randn(20_000)}
    with no_space(room), pytest.raises((OSError, RuntimeError)):
        save(tmp_path, big)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LATEST, "step=000010"]
    assert (tmp_path / LATEST).read_text() == "step=000010\n"
    assert load_checkpoint(tmp_path)["step"] == 10
    assert check_bytes(first, Manifest.read(first)).sound
    save(tmp_path, big)
    assert load_checkpoint(tmp_path)["step"] == 20


def test_a_manifest_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    save(tmp_path, payload_of(1))
    monkeypatch.setattr(Manifest, "write", refuse)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, payload_of(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [LATEST, "step=000001"]


def test_the_same_step_twice_keeps_both(tmp_path: Path) -> None:
    payloads = [payload_of(5) for _ in range(3)]
    folders = [save(tmp_path, payloads[0])]
    folders += [save(tmp_path, payload, attempt=2) for payload in payloads[1:]]
    assert [folder.name for folder in folders] == [
        "step=000005",
        "step=000005-a2",
        "step=000005-a2.1",
    ]
    for folder, payload in zip(folders, payloads, strict=True):
        assert same(load_checkpoint(folder), payload)
    assert (tmp_path / LATEST).read_text() == "step=000005-a2.1\n"
    assert [found.manifest.attempt for found in checkpoints(tmp_path)] == [1, 2, 2]
    assert [found.folder for found in checkpoints(tmp_path)] == folders
    assert same(load_checkpoint(tmp_path), payloads[2])
    times = [3.0, 2.0, 1.0]
    for folder, created in zip(folders, times, strict=True):
        replace(Manifest.read(folder), created=created).write(folder)
    assert [found.folder for found in checkpoints(tmp_path)] == [folders[0], *folders[:0:-1]]
    assert same(load_checkpoint(tmp_path), payloads[1])


def test_checkpoints_of_superseded_attempts_are_passed_over(
    empty_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = empty_run / "archive"
    for step in (10, 20, 30):
        save(archive, payload_of(step))
    assert load_checkpoint(empty_run)["step"] == 30
    RunFile.read(empty_run).with_attempt(Attempt(2, 11, 1.0)).write(empty_run)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        assert load_checkpoint(empty_run)["step"] == 10
    assert [record.getMessage() for record in caplog.records] == [
        "SDC Guard: passed over step 20, superseded by a later attempt",
        "SDC Guard: passed over step 30, superseded by a later attempt",
    ]
    save(archive, payload_of(20), attempt=2)
    assert load_checkpoint(empty_run)["step"] == 20
    assert load_checkpoint(archive)["step"] == 20
    RunFile.read(empty_run).with_attempt(Attempt(3, 0, 2.0)).write(empty_run)
    with pytest.raises(ArchiveIncomplete, match="among 4, 4 of them of superseded attempts"):
        load_checkpoint(empty_run)
    (empty_run / "run.json").write_text("damaged")
    assert load_checkpoint(empty_run)["step"] == 30


def test_the_newest_clean_one_is_taken_and_the_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, payload_of(9))
    save(tmp_path, payload_of(100))
    save(tmp_path, payload_of(1000), doubts=("incident open",))
    save(tmp_path, payload_of(10_000_000), doubts=("incident open",))
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        assert load_checkpoint(tmp_path)["step"] == 100
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "SDC Guard: passed over step 1000, suspect",
        "SDC Guard: passed over step 10000000, suspect",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        assert load_checkpoint(tmp_path / "step=001000")["step"] == 1000
    assert "is suspect: incident open" in caplog.text


def test_half_written_folders_are_not_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, payload_of(1))
    young, old = tmp_path / ".step=000002.aa.partial", tmp_path / ".step=000003.bb.partial"
    for folder in (young, old):
        folder.mkdir()
        (folder / "state.pt").write_bytes(b"half")
    past = time.time() - save_module.ABANDONED_SECONDS - 60
    for path in (old / "state.pt", old):
        os.utime(path, (past, past))
    bare = tmp_path / "step=000004"
    bare.mkdir()
    assert [found.manifest.step for found in checkpoints(tmp_path)] == [1]
    save(tmp_path, payload_of(4))
    assert (tmp_path / "step=000004-a1").is_dir()
    assert young.is_dir()
    assert not old.exists()


def test_what_torch_load_refuses_is_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path, payload_of() | {"path": Path("x")})
    with pytest.raises(CheckpointUnreadable, match="weights_only") as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_tensors_of_another_device_come_back_to_the_cpu(tmp_path: Path) -> None:
    payload = payload_of()
    folder = save(tmp_path, payload)
    path = folder / "state.pt"
    # as a GPU would have saved it: the location is a text in the pickle
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert b"cpu" in archive.read("state/data.pkl")
    path.write_bytes(rewritten(path, b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    manifest = json.loads((folder / FILE).read_text())
    del manifest["own_xxh3"]
    manifest["bytes"], manifest["xxh3"] = path.stat().st_size, checksum(path)
    (folder / FILE).write_text(json.dumps(manifest))
    assert content != path.read_bytes()
    assert same(load_checkpoint(folder), payload)


def test_a_byte_that_is_in_no_tensor_is_seen(tmp_path: Path) -> None:
    """The directory of a zip file has attributes that no reader looks at, and no checksum."""
    payload = payload_of()
    folder = save(tmp_path, payload)
    path = folder / "state.pt"
    with zipfile.ZipFile(path) as archive:
        entry = archive.start_dir + 38  # the external attributes of the first record
    with path.open("r+b") as file:
        file.seek(entry)
        (byte,) = file.read(1)
        file.seek(entry)
        file.write(bytes([byte ^ 0x80]))
    with pytest.raises(CheckpointMismatch, match="none in a tensor"):
        load_checkpoint(folder)
    manifest = json.loads((folder / FILE).read_text())
    assert len(manifest.pop("xxh3")) == 32
    del manifest["own_xxh3"]
    (folder / FILE).write_text(json.dumps(manifest))  # as before there was one
    assert same(load_checkpoint(folder), payload)


def rewritten(path: Path, old: bytes, new: bytes) -> bytes:
    """The file with `old` replaced in its pickle."""
    target = path.with_name("other.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            archive.writestr(name, content.replace(old, new) if "data.pkl" in name else content)
    content = target.read_bytes()
    target.unlink()
    return content
