"""Safetensors files that no library would write: a header and data put together by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from forensics.checkpoint import Checkpoint
from forensics.content import Content
from forensics.readers.reader import Reader
from sdc_guard.digest.reference import words


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def by_hand(path: Path, header: object, data: bytes) -> Path:
    """A file with this header: bytes as they are, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def lfs_pointer(path: Path, size: int = 12965) -> Path:
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{'4d7a2146' * 8}\nsize {size}\n"
    )  # fmt: skip
    return path


def only(reader: Reader, path: Path) -> Checkpoint:
    (checkpoint,) = reader.find(path)
    assert checkpoint.format == reader.format
    assert checkpoint.status == "untested"
    return checkpoint


def opened(reader: Reader, path: Path) -> Content:
    return reader.open(only(reader, path))


def holds(content: Content, expected: dict[str, torch.Tensor]) -> bool:
    """Whether these tensors and no others are in it: dtype, shape, bits."""
    assert sorted(content.tensors) == sorted(expected)
    for name, tensor in expected.items():
        stored = content.tensors[name]
        found = stored.read()
        assert (stored.dtype, stored.shape) == (tensor.dtype, tuple(tensor.shape))
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(words(found), words(tensor)), name
    return True
