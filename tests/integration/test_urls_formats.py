"""What is read behind a URL is what is read on this machine, of every format and every damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_by_libraries as made
import pytest
import torch
from in_process import bisect
from s3_server import Bucket, s3_server
from test_damaged_archives import ROWS, Row
from test_formats_bisect import FORMATS, flip

from forensics.index import index
from forensics.locations import location
from forensics.readers.known import reader_of
from forensics.remote.path import RemotePath
from forensics.scanning import scanned

COUNT = 3


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as running:
        yield running


def told(where: Path | str) -> list[dict[str, Any]]:
    """What index and scan say of an archive, without where it is."""
    found = index(location(str(where)))
    rows = [one.as_dict() for one in (*found, *scanned(found))]
    return [{**row, "path": row["path"].removeprefix(str(where))} for row in rows]


@pytest.mark.parametrize(
    "make", [make for _, make, _ in FORMATS], ids=[make.__name__ for _, make, _ in FORMATS]
)
def test_every_format_is_read_as_on_this_machine(
    make: Any, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "COUNT", COUNT)
    path = make(tmp_path)
    local = index(path)
    assert [one.step for one in local] == list(range(1, COUNT + 1))
    flip(local[1])
    url = bucket.put(path, make.__name__)
    assert told(url) == told(path)
    remote = index(location(url))
    for one, other in zip(local, remote, strict=True):
        a, b = (reader_of(x.format).open(x) for x in (one, other))
        assert a.numbers == b.numbers
        assert a.aliases == b.aliases
        assert list(a.tensors) == list(b.tensors)
        for name, stored in a.tensors.items():
            assert torch.equal(
                stored.read().reshape(-1).view(torch.uint8),
                b.tensors[name].read().reshape(-1).view(torch.uint8),
            )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_damage_is_told_as_on_this_machine(row: Row, bucket: Bucket, tmp_path: Path) -> None:
    row.make(tmp_path)
    url = bucket.put(tmp_path, row.name.replace(" ", "-"))
    local, remote = bisect("scan", tmp_path), bisect("scan", url)
    assert remote.out.replace(url, str(tmp_path)) == local.out
    assert (remote.code, remote.err) == (row.code, "")


def large(folder: Path, format: str) -> Path:
    """Four checkpoints of 4 MiB in ten tensors."""
    for step in range(4):
        torch.manual_seed(step)
        content: dict[str, Any] = {f"w{i}": torch.randn(1000, 105) for i in range(10)}
        if format == "torch":
            torch.save({**content, "step": step}, folder / f"step-{step}.pt")
        elif format == "torch-legacy":
            file = folder / f"step-{step}.pt"
            torch.save(content, file, _use_new_zipfile_serialization=False)
        elif format == "dcp":
            made._distributed(content, made.FileSystemWriter(folder / f"step-{step}"))
        else:
            made.save_file(content, folder / f"step-{step}.safetensors")
    return folder


@pytest.mark.parametrize("format", ["torch", "torch-legacy", "safetensors", "dcp"])
def test_index_fetches_little_and_scan_each_byte_once(
    format: str, bucket: Bucket, tmp_path: Path
) -> None:
    url = bucket.put(large(tmp_path, format), f"large-{format}")
    size = bucket.sizes(f"large-{format}")
    path = location(url)
    assert isinstance(path, RemotePath)
    found = index(path)
    assert {one.format for one in found} == {format}
    # the old format says how long each tensor is right before it: a block each
    assert path.store.fetched < (0.2 if format == "torch-legacy" else 0.05) * size
    assert all(one.readable for one in scanned(found, 2))
    # likewise: what lies around blocks that are there is fetched in one piece with them
    most = 1.2 if format == "torch-legacy" else 1.01
    assert 0.99 * size < path.store.fetched < most * size


def test_a_store_whose_objects_change_in_size_is_told(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put(large(tmp_path, "safetensors"), "shrinking")
    found = index(location(url))
    bucket.fs.pipe_file("bucket/shrinking/step-2.safetensors", b"x" * 100_000)
    bucket.fs.rm_file("bucket/shrinking/step-3.safetensors")
    rows = {one.checkpoint.step: one for one in scanned(found)}
    assert rows[1].readable
    assert "the store gives less than it said" in str(rows[2])
    assert "no such file" in str(rows[3])
    assert rows[2].status != "clean"
    assert rows[3].status == "untested"  # what cannot be read is no proof of damage
    assert not rows[3].damaged
