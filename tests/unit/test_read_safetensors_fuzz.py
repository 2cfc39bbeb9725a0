"""Any damage to a safetensors file ends in a reason or in a Content; the library judges along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_safetensors import holds
from safetensors.torch import load, save

from forensics.readers.safetensors_file import READER
from sdc_guard.errors import CheckpointUnreadable

GOOD = save(
    {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16),
     "c": torch.tensor(True), "empty": torch.empty(0, 4)},
    metadata={"step": "7", "b2": "b"},
)  # fmt: skip
HEADER = 8 + int.from_bytes(GOOD[:8], "little")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def answered(folder: Path, content: bytes) -> dict[str, torch.Tensor] | None:
    """All tensors, or None where the file is unreadable by its reasons; never another error."""
    path = folder / "m-5.safetensors"
    path.write_bytes(content)
    (checkpoint,) = READER.find(path)
    assert checkpoint.readable != bool(checkpoint.reasons)
    for line in (*checkpoint.reasons, *checkpoint.notes):
        assert line.isprintable()
        line.encode()
    try:
        found = READER.open(checkpoint)
        integrity = READER.check(checkpoint)
    except CheckpointUnreadable:
        assert not checkpoint.readable
        return None
    tensors, torn = {}, set()
    for name, stored in found.tensors.items():
        try:
            tensors[name] = stored.read()
            assert tensors[name].dtype == stored.dtype
            assert tuple(tensors[name].shape) == stored.shape
        except CheckpointUnreadable:
            torn.add(name)
    assert torn == set(integrity.damaged)
    assert set(tensors) == set(integrity.unchecked)
    assert integrity.bytes == len(content)
    assert checkpoint.readable == (not torn)
    return None if torn else tensors


def by_library(content: bytes) -> dict[str, torch.Tensor] | None:
    try:
        return load(content)
    except Exception:  # noqa: BLE001 - because it raises errors of several kinds, one of its own
        return None


def agree(folder: Path, content: bytes) -> None:
    ours, theirs = answered(folder, content), by_library(content)
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        (checkpoint,) = READER.find(folder)
        assert holds(READER.open(checkpoint), theirs)


def test_the_undamaged_file(folder: Path) -> None:
    agree(folder, GOOD)
    assert answered(folder, GOOD)


@given(st.integers(0, len(GOOD) - 1))
def test_any_truncation(folder: Path, size: int) -> None:
    assert answered(folder, GOOD[:size]) is None


@given(st.integers(1, 100))
def test_any_bytes_behind_it(folder: Path, count: int) -> None:
    found = answered(folder, GOOD + bytes(count))
    assert found is not None
    assert torch.equal(found["a.weight"], torch.arange(6.0).reshape(2, 3))


def test_bits_of_the_header(folder: Path, seed: int) -> None:
    """Where a bit flips unseen, in a name say, the library reads the same tensors."""
    for bit in range(seed % 3, 8 * HEADER, 3):  # every byte
        content = bytearray(GOOD)
        content[bit // 8] ^= 1 << bit % 8
        agree(folder, bytes(content))


@given(st.binary(max_size=300))
def test_any_bytes(folder: Path, content: bytes) -> None:
    agree(folder, content)


_SCALARS: Any = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_JSON: Any = st.recursive(
    _SCALARS | st.sampled_from(["F32", "U8", "F4", "BOOL"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_SIZES: Any = st.lists(st.integers(-1, 9), max_size=3)
_ENTRY: Any = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "U8", "F4", "BF16"]), "shape": _SIZES,
     "data_offsets": _SIZES},
)  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), _ENTRY | _JSON, max_size=4),
    st.integers(0, 40),
)
def test_any_header(folder: Path, header: dict[str, Any], held: int) -> None:
    text = json.dumps(header).encode()
    answered(folder, len(text).to_bytes(8, "little") + text + bytes(held))
