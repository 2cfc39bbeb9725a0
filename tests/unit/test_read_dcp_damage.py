"""Damaged DCP directories: told in a line, and never a traceback."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_directories import STEP, change_metadata, flat, in_chunks, same_bits, saved, training
from hypothesis import given
from hypothesis import strategies as st

from forensics.checkpoint import Checkpoint
from forensics.content import Integrity
from forensics.readers.dcp import READER
from forensics.readers.dcp_shards import GRANULARITY
from sdc_guard.archive.dcp.boxes import cover_fault
from sdc_guard.errors import CheckpointUnreadable

SHARD = "__0_0.distcp"


def only(path: Path) -> Checkpoint:
    (found,) = READER.find(path)
    return found


def one_line(checkpoint: Checkpoint) -> str:
    (reason,) = checkpoint.reasons
    assert "\n" not in reason
    return reason


def two_shards(folder: Path, state: dict[str, Any] | None = None) -> Path:
    saved(folder, state or training(), thread_count=2)
    assert (folder / "__0_1.distcp").exists()
    return folder


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x40
    file.write_bytes(content)


def test_a12_metadata_missing(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", training())
    (folder / ".metadata").unlink()
    checkpoint = only(folder)
    assert one_line(checkpoint) == (
        "DCP directory incomplete: .metadata missing; found __0_0.distcp"
    )
    assert (checkpoint.step, checkpoint.readable, checkpoint.status) == (7, False, "untested")
    for use in (READER.open, READER.check):
        with pytest.raises(CheckpointUnreadable, match=r"\.metadata missing"):
            use(checkpoint)


def test_an_interrupted_first_save_and_ranks_that_saved_alone(tmp_path: Path) -> None:
    folder = two_shards(tmp_path / "step-7")
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    assert one_line(only(folder)).endswith(
        "found __0_0.distcp, __0_1.distcp; .metadata.tmp is there: the save did not end"
    )
    (folder / ".metadata.tmp").rename(folder / "__0.metadata")
    assert "each rank saved by itself" in one_line(only(folder))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.write_bytes(b""), "is empty (0 of {size:,} bytes)"),
        (lambda file: os.truncate(file, file.stat().st_size // 2), "is truncated ({half:,} of"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "is truncated ("),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12965\n"
        ), "is a Git LFS pointer; real content (12,965 bytes) not downloaded"),
    ],
)  # fmt: skip
def test_a13_one_of_two_shards_damaged(tmp_path: Path, damage: Any, told: str) -> None:
    state = training()
    folder = two_shards(tmp_path / "step-9", state)
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.distcp")}
    held = {name for name, tensor in READER.open(only(folder)).tensors.items()
            if tensor.files == (folder / "__0_1.distcp",)}  # fmt: skip
    assert 0 < len(held) < len(flat(state))
    size = sizes["__0_1.distcp"]
    damage(folder / "__0_1.distcp")
    checkpoint = only(folder)
    reason = one_line(checkpoint)
    assert told.format(size=size, half=size // 2) in reason
    assert reason.startswith("unreadable: shard __0_1.distcp ")
    assert f"it held {len(held)} of {len(flat(state))} tensors: " in reason
    assert sum(name in reason for name in held) == min(8, len(held))
    assert not checkpoint.readable
    assert (checkpoint.step, checkpoint.named_step) == (STEP, 9)  # the other shard says it
    integrity = READER.check(checkpoint)
    assert set(integrity.intact) >= set(flat(state)) - held
    assert {"__0_1.distcp"} <= set(integrity.damaged)
    content = READER.open(checkpoint)
    for name in set(flat(state)) - held:
        assert same_bits(content.tensors[name].read(), flat(state)[name])
    unread = held & set(integrity.damaged)
    assert unread
    for name in unread:
        with pytest.raises(CheckpointUnreadable, match="cannot be read"):
            content.tensors[name].read()


def test_everything_missing(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", training())
    (folder / SHARD).unlink()
    checkpoint = only(folder)
    assert "__0_0.distcp is missing" in one_line(checkpoint)
    with pytest.raises(CheckpointUnreadable, match="none of its items can be read"):
        READER.check(checkpoint)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 77\n", "Git LFS pointer"),
        (b"\x80\x04garbage", "damaged or truncated"),
        (b"\x80\x04N.", "something else than what DCP writes"),
        (b'{"weight_map": {}}', "damaged or truncated"),
    ],
)
def test_metadata_that_is_none(tmp_path: Path, content: bytes, told: str) -> None:
    folder = saved(tmp_path / "step-7", training())
    (folder / ".metadata").write_bytes(content)
    checkpoint = only(folder)
    assert told in one_line(checkpoint)
    assert (checkpoint.step, checkpoint.readable) == (7, False)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", training())
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()
    assert "is missing" in one_line(only(folder))
    shutil.rmtree(folder / SHARD)
    (folder / ".metadata").unlink()
    assert READER.find(folder) == []


def test_a_flipped_bit_names_the_tensor(tmp_path: Path) -> None:
    state = {"a": torch.arange(64.0), "b": torch.arange(64.0) + 7, "s": torch.tensor(3)}
    saved(tmp_path, state)
    at = (tmp_path / SHARD).read_bytes().index(state["b"].numpy().tobytes())
    flip(tmp_path / SHARD, at + 8)
    integrity = READER.check(only(tmp_path))
    assert integrity.damaged == {"b": "CRC mismatch in record data/0"}
    assert integrity.intact == ("a", "s")
    assert READER.open(only(tmp_path)).tensors["b"].read()[2] != 9  # and is read all the same


def test_every_flipped_byte_of_a_tensor_is_found(tmp_path: Path, seed: int) -> None:
    state = {"w": torch.arange(6.0), "lr": 0.5}
    saved(tmp_path, state)
    original = (tmp_path / SHARD).read_bytes()
    start = original.index(state["w"].numpy().tobytes())
    for at in range(start, start + 24):
        flip(tmp_path / SHARD, at)
        assert set(READER.check(only(tmp_path)).damaged) == {"w"}
        (tmp_path / SHARD).write_bytes(original)
    assert READER.check(only(tmp_path)).damaged == {}


def test_without_checksums_tensors_are_unchecked(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        saved(tmp_path, {"w": torch.ones(3)})
    finally:
        torch.serialization.set_crc32_options(True)
    integrity = READER.check(only(tmp_path))
    assert (integrity.damaged, integrity.intact) == ({}, ())
    assert integrity.unchecked == ("w", ".metadata")


def test_a_tensor_whose_own_record_has_no_checksum_is_unchecked(tmp_path: Path) -> None:
    tensor = torch.arange(3.0)
    saved(tmp_path, {"w": tensor, "v": torch.ones(2)})
    content = (tmp_path / SHARD).read_bytes()
    stored = zlib.crc32(tensor.numpy().tobytes()).to_bytes(4, "little")
    assert stored in content
    (tmp_path / SHARD).write_bytes(content.replace(stored, bytes(4)))
    integrity = READER.check(only(tmp_path))
    assert (integrity.damaged, integrity.intact, integrity.unchecked) == (
        {},
        ("v",),
        ("w", ".metadata"),
    )


def aged(folder: Path, seconds: float) -> None:
    """Make `.metadata` older than the shards."""
    at = (folder / SHARD).stat().st_mtime - seconds
    os.utime(folder / ".metadata", (at, at))


def test_saving_again_and_dying_is_suspect(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", training(7))
    later = saved(tmp_path / "other" / "step-8", training(8))
    shutil.copy(later / SHARD, folder / SHARD)  # what a save that dies before its end leaves
    aged(folder, 60)
    checkpoint = only(folder)
    assert checkpoint.status == "suspect"
    assert one_line(checkpoint).startswith("__0_0.distcp newer than .metadata: ")
    assert (checkpoint.step, checkpoint.named_step) == (8, 7)
    assert checkpoint.readable


def test_clocks_that_differ_by_less_than_a_file_system_tells_are_no_reason(tmp_path: Path) -> None:
    folder = saved(tmp_path, training())
    aged(folder, GRANULARITY - 0.5)
    assert only(folder).status == "untested"
    aged(folder, GRANULARITY + 0.5)
    assert only(folder).status == "suspect"


def test_a_shard_of_another_step_is_suspect(tmp_path: Path) -> None:
    folders = [two_shards(tmp_path / f"step-{step}", training(step)) for step in (7, 8)]
    assert [only(folder).status for folder in folders] == ["untested", "untested"]
    shutil.copy(folders[1] / "__0_1.distcp", folders[0] / "__0_1.distcp")
    aged(folders[0], -60)
    checkpoint = only(folders[0])
    assert checkpoint.status == "suspect"
    assert "the optimizer's step is 7 in __0_0.distcp and 8 in __0_1.distcp" in one_line(checkpoint)


def test_parameters_that_joined_later_and_two_optimizers_are_no_reason(tmp_path: Path) -> None:
    def adam(*steps: float) -> dict[str, Any]:
        return {"state": {index: {"step": torch.tensor(step)} for index, step in enumerate(steps)}}

    def status(name: str, state: dict[str, Any], **options: Any) -> str:
        folder = saved(tmp_path / name, state, **options)
        assert len(list(folder.glob("*.distcp"))) > 1
        return only(folder).status

    # by turns in two files: 7 and 7 beside 2 and 2 is the one sign of two saves
    assert status("a", {"optim": adam(7.0, 2.0, 7.0, 2.0)}, thread_count=2) == "suspect"
    assert status("b", {"optim": adam(2.0, 7.0, 7.0, 2.0)}, thread_count=2) == "untested"
    assert status("e", {"optim": adam(2.0, 7.0, 7.0, 7.0)}, thread_count=2) == "untested"
    assert status("c", {"optim": adam(2.0, 7.0)}, single_file_per_rank=False) == "untested"
    by_turns = {
        f"{optimizer}.state.{index}.step": torch.tensor(step)
        for index in range(2)
        for optimizer, step in (("one", 7.0), ("two", 2.0))
    }
    assert status("d", by_turns, thread_count=2) == "untested"


def test_a_shard_with_other_sizes_than_the_metadata_says(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", {"w": torch.arange(8.0), "v": torch.ones(2)})
    other = saved(tmp_path / "b", {"w": torch.arange(8.0), "v": torch.ones(2, dtype=torch.int32)})
    shutil.copy(other / SHARD, folder / SHARD)
    integrity = READER.check(only(folder))
    assert integrity.intact == ("w",)
    assert integrity.damaged == {
        "v": "the item there is torch.int32 of shape [2], the metadata says torch.float32 of shape "
        "[2] (__0_0.distcp)"
    }
    with pytest.raises(CheckpointUnreadable, match=r"the item there is torch\.int32"):
        READER.open(only(folder)).tensors["v"].read()


def test_bytes_after_the_last_item_and_shards_of_nothing_are_notes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", training())
    with (folder / SHARD).open("ab") as file:
        file.write(b"1234")
    (folder / "__3_0.distcp").write_bytes(b"x")
    checkpoint = only(folder)
    assert checkpoint.notes == (
        "__3_0.distcp: no item of .metadata is there",
        "4 bytes after the last item of __0_0.distcp",
    )
    assert (checkpoint.status, READER.check(checkpoint).damaged) == ("untested", {})


def damaged_by(folder: Path, change: Any) -> Integrity:
    change_metadata(folder, change)
    return READER.check(only(folder))


def test_holes_and_overlaps_of_chunks_are_told(tmp_path: Path) -> None:
    def hole(metadata: Any) -> None:
        metadata.state_dict_metadata["w"].size = torch.Size([5, 4])

    def twice(metadata: Any) -> None:
        metadata.state_dict_metadata["w"].chunks *= 2

    def lost(metadata: Any) -> None:
        metadata.storage_data = {
            index: place for index, place in metadata.storage_data.items() if index.fqn != "w"
        }

    for change, told in (
        (hole, "8 of its 20 elements are in no chunk"),
        (twice, "its chunks at [0, 0] and [0, 0] overlap"),
        (lost, "the metadata does not say where its chunk at [0, 0] is"),
    ):
        folder = saved(tmp_path, {"w": torch.ones(3, 4), "v": torch.ones(2)})
        integrity = damaged_by(folder, change)
        assert integrity.damaged == {"w": told}
        assert integrity.intact == ("v",)
        with pytest.raises(CheckpointUnreadable, match="w cannot be read"):
            READER.open(only(folder)).tensors["w"].read()


def test_a_flipped_bit_of_one_chunk_names_the_tensor_and_the_chunk(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(4, 3)
    folder = in_chunks(tmp_path, tensor, [([0, 0], [3, 3]), ([3, 0], [1, 3])])
    flip(folder / SHARD, (folder / SHARD).read_bytes().index(tensor[3:].numpy().tobytes()))
    integrity = READER.check(only(folder))
    assert integrity.damaged == {"w": "CRC mismatch in record data/0 of chunk [3, 0]"}
    assert integrity.intact == ()


def test_a_plain_tensor_that_is_said_to_be_quantized_is_told(tmp_path: Path) -> None:
    def quantized(metadata: Any) -> None:
        metadata.state_dict_metadata["w"].properties.dtype = torch.quint4x2

    folder = in_chunks(tmp_path, torch.ones(4), [([0], [2]), ([2], [2])])
    change_metadata(folder, quantized)
    assert READER.open(only(folder)).foreign == {"w": "a tensor of torch.quint4x2"}
    with pytest.raises(CheckpointUnreadable, match="none of its items can be read"):
        READER.check(only(folder))


def test_compressed_items_are_told_as_not_readable(tmp_path: Path) -> None:
    def compress(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.transform_descriptors = ["stream.zstd"]

    folder = saved(tmp_path, {"w": torch.ones(3), "step": 3})
    change_metadata(folder, compress)
    checkpoint = only(folder)
    assert not checkpoint.readable
    assert "its items went through stream.zstd" in one_line(checkpoint)
    content = READER.open(checkpoint)
    with pytest.raises(CheckpointUnreadable, match=r"went through stream\.zstd: not readable"):
        content.tensors["w"].read()
    with pytest.raises(CheckpointUnreadable, match="none of its items"):
        READER.check(checkpoint)


def test_boxes_side_by_side_do_not_overlap() -> None:
    grid = [([row, column], [2, 2]) for row in (0, 2) for column in (0, 2)]
    assert cover_fault([4, 4], grid) == ""
    assert cover_fault([4, 5], grid) == "4 of its 20 elements are in no chunk"
    assert cover_fault([4, 4], [*grid, ([1, 1], [2, 2])]).endswith("overlap")


@given(st.data())
def test_boxes_cover_as_counting_their_elements_says(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    boxes = []
    for _ in range(data.draw(st.integers(0, 4))):
        offsets = [data.draw(st.integers(0, size)) for size in shape]
        sizes = [
            data.draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True)
        ]
        boxes.append((offsets, sizes))
    counts = torch.zeros(shape, dtype=torch.int64)
    for offsets, sizes in boxes:
        counts[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] += 1
    sound = bool(boxes) and bool((counts == 1).all())
    assert (cover_fault(shape, boxes) == "") == sound
