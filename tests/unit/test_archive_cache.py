"""The cache of checkpoints' files: a size that holds, and never any other bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sdc_guard.archive.cache.cache import Cache
from sdc_guard.archive.cache.entries import Entries, Held, Key, Room
from sdc_guard.archive.manifest import FileEntry
from sdc_guard.errors import CheckpointMismatch, CheckpointUnreadable, UsageError

EMPTY_XXH3_128 = "99aa06d3014798d86001c324468d497f"  # from the specification of XXH3, no seed


def made(folder: Path, number: int, size: int) -> tuple[FileEntry, Path]:
    """A file of its own bytes, and what is recorded of it."""
    content = (hashlib.sha256(bytes([number])).digest() * (size // 32 + 1))[:size]
    path = folder / f"file-{number}"
    path.write_bytes(content)
    return FileEntry(path.name, size, xxhash.xxh3_128_hexdigest(content)), path


def on_disk(cache: Cache) -> int:
    """Bytes of all of its files, counted without it."""
    return sum(path.stat().st_size for path in cache.entries.folder.rglob("*") if path.is_file())


def read(cache: Cache, entry: FileEntry, source: Path) -> bytes | None:
    held = cache.fetch(entry, source)
    if held is None:
        return None
    with held:
        return held.path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 100, lambda _: None)


def test_what_was_fetched_is_there(cache: Cache, tmp_path: Path) -> None:
    entry, source = made(tmp_path, 1, 60)
    content = source.read_bytes()
    assert cache.hit(entry) is None
    assert read(cache, entry, source) == content
    source.unlink()
    assert read(cache, entry, source) == content
    assert cache.entries.used() == on_disk(cache) == 60


def test_an_empty_file_is_one_like_others(cache: Cache, tmp_path: Path) -> None:
    entry, source = made(tmp_path, 1, 0)
    assert entry.xxh3 == EMPTY_XXH3_128
    assert read(cache, entry, source) == b""


def test_the_one_used_longest_ago_goes_first(cache: Cache, tmp_path: Path) -> None:
    files = [made(tmp_path, number, 40) for number in range(3)]
    read(cache, *files[0])
    read(cache, *files[1])
    read(cache, *files[0])  # used again
    read(cache, *files[2])
    assert [cache.hit(entry) is not None for entry, _ in files] == [True, False, True]


def test_what_is_in_use_stays_and_the_rest_goes_past(cache: Cache, tmp_path: Path) -> None:
    (one, first), (two, second) = (made(tmp_path, number, 60) for number in range(2))
    held = cache.fetch(one, first)
    assert held is not None
    assert cache.fetch(two, second) is None
    assert on_disk(cache) == 60
    held.close()
    assert read(cache, two, second) == second.read_bytes()
    assert cache.hit(one) is None


def test_a_file_that_is_too_large_evicts_nothing(cache: Cache, tmp_path: Path) -> None:
    small, large = made(tmp_path, 1, 90), made(tmp_path, 2, 101)
    read(cache, *small)
    assert cache.fetch(*large) is None
    assert cache.hit(small[0]) is not None


@pytest.mark.parametrize("damage", ["flip", "cut", "longer"])
def test_an_entry_of_other_bytes_is_dropped_told_and_fetched_again(
    damage: str, tmp_path: Path
) -> None:
    told: list[str] = []
    cache = Cache(tmp_path / "cache", 1000, told.append)
    entry, source = made(tmp_path, 1, 60)
    read(cache, entry, source)
    (path,) = cache.entries.entries.iterdir()
    content = path.read_bytes()
    path.write_bytes(
        {"flip": bytes([content[0] ^ 1]) + content[1:], "cut": content[:-1],
         "longer": content + b"x"}[damage]
    )  # fmt: skip
    assert read(cache, entry, source) == content
    assert len(told) == 1
    assert "file-1: the bytes in the cache are other ones" in told[0]
    assert path.read_bytes() == content


def test_a_source_of_other_bytes_is_no_entry(cache: Cache, tmp_path: Path) -> None:
    entry, source = made(tmp_path, 1, 60)
    content = bytearray(source.read_bytes())
    content[59] ^= 128
    source.write_bytes(content)
    with pytest.raises(CheckpointMismatch, match="not the bytes that were written"):
        cache.fetch(entry, source)
    source.write_bytes(content[:20])
    with pytest.raises(CheckpointMismatch, match="20 of 60 bytes"):
        cache.fetch(entry, source)
    source.unlink()
    with pytest.raises(CheckpointUnreadable, match="missing"):
        cache.fetch(entry, source)
    assert on_disk(cache) == 0


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, no_space: Callable[[int], AbstractContextManager[None]]
) -> None:
    told: list[str] = []
    cache = Cache(tmp_path / "cache", 1000, told.append)
    entry, source = made(tmp_path, 1, 500)
    with no_space(100):
        assert cache.fetch(entry, source) is None
    assert "the cache cannot be written (File too large)" in told[0]
    assert on_disk(cache) == cache.entries.used() == 0


def test_two_who_want_the_same_read_it_once(tmp_path: Path) -> None:
    entry, source = made(tmp_path, 1, 60)
    one, two = (Cache(tmp_path / "cache", 100) for _ in range(2))
    key = Key(entry.xxh3, entry.bytes)
    room = one.entries.room(key, 100)
    assert isinstance(room, Room)
    found: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: found.append(read(two, entry, Path("none"))))
    waiting.start()
    os.write(room.descriptor, source.read_bytes())
    one.entries.publish(room).close()
    waiting.join(10)
    assert found == [source.read_bytes()]


def test_what_is_being_written_counts_and_what_a_dead_one_left_does_not(tmp_path: Path) -> None:
    entries = Entries(tmp_path)
    key, other = Key("0" * 32, 70), Key("1" * 32, 70)
    room = entries.room(key, 100)
    assert isinstance(room, Room)
    assert entries.used() == 70
    assert entries.room(other, 100) is None
    room.close()  # as the system does when its process dies
    assert room.path.exists()
    again = entries.room(other, 100)
    assert isinstance(again, Room)
    assert not room.path.exists()
    entries.give_up(again)


def test_a_smaller_size_is_kept_from_the_start(cache: Cache, tmp_path: Path) -> None:
    for number in range(3):
        read(cache, *made(tmp_path, number, 30))
    assert on_disk(cache) == 90
    Cache(tmp_path / "cache", 60)
    assert on_disk(cache) == 60


def test_strange_files_are_left_alone_and_not_counted(cache: Cache, tmp_path: Path) -> None:
    strange = cache.entries.entries / "notes.txt"
    strange.write_text("mine")
    read(cache, *made(tmp_path, 1, 90))
    read(cache, *made(tmp_path, 2, 90))
    assert strange.read_text() == "mine"


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the cache cannot be used"):
        Cache(tmp_path / "file", 10)
    with pytest.raises(UsageError, match="size of a cache"):
        Cache(tmp_path / "other", -1)


class Used(RuleBasedStateMachine):
    """Two processes' caches on one folder, whose entries are damaged at random."""

    LIMIT = 100

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory()
        self.folder = Path(self._root.name)
        self.caches = [Cache(self.folder / "cache", self.LIMIT, lambda _: None) for _ in range(2)]
        self.files = [made(self.folder, n, size) for n, size in enumerate((1, 17, 40, 60, 99, 130))]
        self.held: list[tuple[Held, bytes]] = []

    @rule(which=st.integers(0, 5), who=st.integers(0, 1), keep=st.booleans())
    def fetch(self, which: int, who: int, *, keep: bool) -> None:
        entry, source = self.files[which]
        held = self.caches[who].fetch(entry, source)
        if held is None:
            assert entry.bytes > self.LIMIT or self.held  # else there is room
            return
        assert held.path.read_bytes() == source.read_bytes()
        if keep:
            self.held.append((held, source.read_bytes()))
        else:
            held.close()

    @rule(which=st.integers(0, 5), who=st.integers(0, 1))
    def hit(self, which: int, who: int) -> None:
        entry, source = self.files[which]
        held = self.caches[who].hit(entry)
        if held is not None:
            with held:
                assert held.path.read_bytes() == source.read_bytes()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        in_use = {held.place for held, _ in self.held}
        there = [x for x in sorted(self.entries()) if x not in in_use and x.stat().st_size]
        if there:
            path = data.draw(st.sampled_from(there))
            content = bytearray(path.read_bytes())
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(content[: data.draw(st.sampled_from([at, len(content)]))])

    @rule(who=st.integers(0, 1), which=st.integers(0, 4))
    def die(self, who: int, which: int) -> None:
        """A process ends while it writes; the system lets its locks go."""
        entry, source = self.files[which]
        room = self.caches[who].entries.room(Key(entry.xxh3, entry.bytes), self.LIMIT)
        if isinstance(room, Room):
            os.write(room.descriptor, source.read_bytes()[: entry.bytes // 2])
        if room is not None:
            room.close()

    @rule()
    def let_go(self) -> None:
        while self.held:
            held, content = self.held.pop()
            assert held.path.read_bytes() == content  # what was in use was not touched
            held.close()

    def entries(self) -> list[Path]:
        return list((self.folder / "cache" / "entries").iterdir())

    @invariant()
    def the_size_holds(self) -> None:
        assert on_disk(self.caches[0]) <= self.LIMIT
        assert self.caches[0].entries.used() <= self.LIMIT

    def teardown(self) -> None:
        for held, _ in self.held:
            held.close()
        self._root.cleanup()


Used.TestCase.settings = settings(max_examples=25, stateful_step_count=20)
TestUsed = Used.TestCase
