"""Paths behind URLs against pathlib's own, and the blocks that are fetched for them."""

from __future__ import annotations

import errno
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.locations import is_local, is_url, location, only_local
from forensics.remote.blocks import BLOCK, Blocks
from forensics.remote.errors import translated
from forensics.remote.path import RemotePath
from sdc_guard.errors import ArchiveUnreachable, UsageError

FILES = {"a/step-1/x.bin": b"one", "a/step-1/deep/y.txt": b"two", "a/step-10.pt": b"", "b.pt": b"3"}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Path, RemotePath]]:
    """The same files on this machine and in memory behind a URL."""
    fs = fsspec.filesystem("memory")
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        fs.pipe_file(f"/top/{name}", content)
    yield tmp_path, cast(RemotePath, location("memory://top"))
    fs.rm("/top", recursive=True)


def test_it_is_as_pathlib_has_it(both: tuple[Path, RemotePath]) -> None:
    local, remote = both
    assert str(remote) == "memory://top"
    for name in ("", "a", "a/step-1", "a/step-1/x.bin", "a/step-10.pt", "none", "b.pt/under"):
        one, other = (local / name, remote / name) if name else both
        assert one.exists() == other.exists(), name
        assert one.is_file() == other.is_file(), name
        assert one.is_dir() == other.is_dir(), name
        if name:
            assert (one.name, one.stem, one.suffix) == (other.name, other.stem, other.suffix)
        if one.is_dir():
            assert [x.name for x in sorted(one.iterdir())] == [
                x.name for x in sorted(other.iterdir())
            ]
        if one.is_file():
            assert one.read_bytes() == other.read_bytes()
            assert one.stat().st_size == other.stat().st_size
    for pattern in ("*", "a/step-*", "*/*/x.bin", "*.pt", "none/*"):
        found = {x.relative_to(local).as_posix() for x in local.glob(pattern)}
        assert found == {x.relative_to(remote).as_posix() for x in remote.glob(pattern)}, pattern
    found = {x.relative_to(local).as_posix() for x in local.rglob("*")}
    assert found == {x.relative_to(remote).as_posix() for x in remote.rglob("*")}
    assert (remote / "a" / "x").parents[1] == remote
    assert remote / "a" in {remote / "a"}
    assert (remote / "b.pt").with_name("c.pt").is_relative_to(remote)


def test_nothing_takes_it_for_a_path_of_this_machine(both: tuple[Path, RemotePath]) -> None:
    _, remote = both
    with pytest.raises(TypeError):
        os.listdir(cast(Any, remote / "a"))  # noqa: PTH208 - a function of os
    with pytest.raises(TypeError):
        Path(cast(Any, remote))
    with pytest.raises(AttributeError):
        zipfile.ZipFile(cast(Any, remote / "b.pt"))
    with pytest.raises(OSError, match="only read") as raised:
        remote.open("wb")
    assert raised.value.errno == errno.EROFS
    with pytest.raises(FileNotFoundError):
        (remote / "none").open("rb")
    with pytest.raises(IsADirectoryError):
        (remote / "a").open("rb")
    assert not is_local(cast(Path, remote))
    with pytest.raises(UsageError, match="it is not done behind a URL: memory://top"):
        only_local(cast(Path, remote), "it is not done", "")


def test_it_goes_to_other_machines(both: tuple[Path, RemotePath]) -> None:
    there = pickle.loads(pickle.dumps(both[1] / "b.pt"))
    assert there == both[1] / "b.pt"
    assert there.read_bytes() == b"3"


def test_seeking_in_a_file(both: tuple[Path, RemotePath]) -> None:
    with (both[1] / "a/step-1/x.bin").open("rb") as file:
        assert (file.seek(-2, 2), file.read(1), file.tell()) == (1, b"n", 2)
        assert (file.seek(10), file.read()) == (10, b"")
        with pytest.raises((OSError, ValueError)):
            file.seek(-1)


@pytest.mark.parametrize("text", ["plain", "/a/b", "c:d", "ducklake:postgres://me@host?run=x"])
def test_what_is_no_url_is_a_path(text: str) -> None:
    assert location(text) == Path(text)
    assert not is_url(text)


@given(
    size=st.integers(1, 6 * BLOCK),
    reads=st.lists(st.tuples(st.integers(0, 7 * BLOCK), st.integers(0, 3 * BLOCK)), max_size=12),
    kept=st.sampled_from([BLOCK, 3 * BLOCK, 100 * BLOCK]),
)
def test_what_is_read_in_blocks_is_the_file(
    size: int, reads: list[tuple[int, int]], kept: int
) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    blocks = Blocks(kept)

    def fetch(first: int, end: int) -> bytes:
        assert 0 <= first < end <= size
        return content[first:end]

    for first, length in reads:
        found = blocks.read("file", size, first, first + length, fetch)
        assert found == content[first : first + length]
    assert blocks._size == sum(map(len, blocks._blocks.values())) <= max(kept, BLOCK)


@pytest.mark.parametrize("piece", [1000, BLOCK, 5 * BLOCK // 2])
def test_in_its_order_each_byte_is_fetched_once_and_in_few_requests(piece: int) -> None:
    size = 200 * BLOCK + 17
    asked: list[tuple[int, int]] = []

    def fetch(first: int, end: int) -> bytes:
        asked.append((first, end))
        return bytes(end - first)

    blocks = Blocks(70 * BLOCK)  # less than the file
    for first in range(0, size, piece):
        blocks.read("file", size, first, min(size, first + piece), fetch)
    assert sum(end - first for first, end in asked) == size
    assert len(asked) < 15
    assert max(end - first for first, end in asked) <= 64 * BLOCK


def test_errors_of_many_libraries() -> None:
    class EndpointConnectionError(Exception):
        pass

    class NoCredentialsError(Exception):
        pass

    class ClientResponseError(Exception):
        status = 403

    def told(error: Exception, cause: Exception | None = None) -> Exception:
        error.__cause__ = cause
        return translated(error, "s3://bucket/x")

    secret = "AKIA-secret"
    assert isinstance(told(EndpointConnectionError(secret)), ArchiveUnreachable)
    assert isinstance(told(ConnectionResetError(secret)), ArchiveUnreachable)
    assert isinstance(told(TimeoutError(secret)), ArchiveUnreachable)
    hidden = told(FileNotFoundError("u"), EndpointConnectionError(secret))
    assert isinstance(hidden, ArchiveUnreachable)
    assert isinstance(told(NoCredentialsError(secret)), UsageError)
    assert isinstance(told(PermissionError(secret)), PermissionError)
    assert isinstance(told(FileNotFoundError("u"), ClientResponseError()), PermissionError)
    assert isinstance(told(FileNotFoundError("step-403.pt")), FileNotFoundError)
    assert isinstance(told(OSError(errno.EIO, "InvalidAccessKeyId: x")), PermissionError)
    for number in (errno.EBUSY, errno.EREMOTEIO):  # as s3fs has SlowDown and InternalError
        assert isinstance(told(OSError(number, secret)), ArchiveUnreachable)
    for status, kind in ((503, ArchiveUnreachable), (429, ArchiveUnreachable), (412, OSError)):
        answer = Exception(secret)
        vars(answer)["response"] = {"ResponseMetadata": {"HTTPStatusCode": status}}
        assert isinstance(told(OSError(errno.EIO, secret), answer), kind)
    plain = told(RuntimeError(secret))
    assert isinstance(plain, OSError)
    assert "RuntimeError" in str(plain)
    for error in (EndpointConnectionError(secret), RuntimeError(secret), PermissionError(secret)):
        assert secret not in str(told(error))
