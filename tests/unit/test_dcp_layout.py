"""What saves of one layout have in common is read once, and no end of a file changes it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dcp_directories import flat, saved, training

from sdc_guard.archive.dcp import dcp_metadata
from sdc_guard.archive.dcp.dcp_layout import known_layout
from sdc_guard.archive.dcp.dcp_metadata import FILE, read_metadata
from sdc_guard.archive.dcp.dcp_pickle import load_metadata
from sdc_guard.errors import CheckpointUnreadable

KEY = b"\x8c\x0cstorage_meta"


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """A `.metadata` of a small training."""
    return (saved(tmp_path / "step-7", training()) / FILE).read_bytes()


def halves(content: bytes) -> tuple[bytes, bytes]:
    """What comes before the key that says which save it was, and the rest."""
    end = content.rfind(KEY)
    return content[:end], content[end:]


def in_folder(folder: Path, content: bytes) -> Path:
    """A directory with that `.metadata`."""
    folder.mkdir()
    (folder / FILE).write_bytes(content)
    return folder


def test_another_save_of_the_layout_is_the_same_read_as_a_whole(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, rest = halves(content)
    other = rest.replace(b"step-7", b"step-12345").replace(
        b"\x94\x8c\x06step-", b"\x94\x8c\x0astep-"
    )
    other = first + (other if len(other) != len(rest) else rest)
    whole = load_metadata(other)
    known = known_layout(content)
    assert known is not None
    assert known_layout(other) is known
    assert known.keys() <= vars(whole).keys()
    quick = read_metadata(in_folder(tmp_path / "quick", other))
    monkeypatch.setattr(dcp_metadata, "known_layout", lambda content: None)
    slow = read_metadata(in_folder(tmp_path / "slow", other))
    assert (dict(quick.tensors), dict(quick.others)) == (dict(slow.tensors), dict(slow.others))
    assert quick.bytes == slow.bytes == len(other)
    assert flat(training()).keys() <= quick.tensors.keys() | quick.others.keys()


def get(content: bytes, wanted: Callable[[Any], bool]) -> bytes:
    """The operation that pushes the first thing that was remembered and is wanted."""
    from sdc_guard.archive.dcp.dcp_pickle import MetadataUnpickler

    machine = MetadataUnpickler(content)
    machine.load()
    index = next(index for index, value in machine.memo.items() if wanted(value))
    return b"j" + index.to_bytes(4, "little")


def endings(content: bytes) -> dict[str, bytes]:
    """Ends that do something to what the first part made."""
    _, rest = halves(content)

    def after(operations: bytes) -> bytes:
        """Carried out where the first part ended; then the key again, written another way."""
        return KEY + b"0" + operations + b"X\x0c\0\0\0storage_meta" + rest[len(KEY) :]

    assert known_layout(content[: -len(rest)] + after(b"")) is not None
    tensors = get(content, lambda value: type(value) is dict and "w" not in value and value)
    text = pickle.dumps("x", 4)[11:14]
    return {
        "asks for what was remembered": after(tensors + text + b"Ns0"),
        "writes to what is on top": after(text + b"Ns"),
        "appends to what is on top": after(text + b"a"),
        "gives it a state": after(b"}b"),
        "drops it": after(b"00"),
        "another in its place": after(b"\x8c\x13state_dict_metadata}"),
        "two of one": after(b"2" + text),
        "no end": rest[:-1],
        "something behind the object": after(text + b"."),
    }


def test_an_end_that_touches_the_layout_has_the_file_read_as_a_whole(content: bytes) -> None:
    first, _ = halves(content)
    known = known_layout(content)
    assert known is not None
    before = read_state(known)
    for name, ending in endings(content).items():
        assert known_layout(first + ending) is None, name
    assert known_layout(content) is known
    assert read_state(known) == before


def read_state(values: Any) -> str:
    """All that a layout says, as text."""
    return repr({name: sorted(map(str, value)) for name, value in values.items()})


def test_a_damaged_layout_is_told_as_ever(content: bytes, tmp_path: Path) -> None:
    first, rest = halves(content)
    wrong = first.replace(b"StorageMetadata", b"StorageMetadatb", 1) + rest
    with pytest.raises(CheckpointUnreadable):
        read_metadata(in_folder(tmp_path / "wrong", wrong))
