"""What differs between checkpoints, tensor by tensor: never more than two tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sdc_guard.errors import CheckpointUnreadable

from .aliases import same_names
from .bit_diff import BitDiff, bit_diff
from .content import Content, StoredTensor


@dataclass(frozen=True)
class TensorDiff:
    """One tensor in two checkpoints.

    Attributes:
        name: of the tensor.
        kind: "same", "bits" if only those differ, "dtype", "shape", "only in A", "only in B" or
            "unreadable".
        text: dtypes, shapes or the reason, where `kind` is about these.
        bits: where `kind` is "bits".
    """

    name: str
    kind: str
    text: str = ""
    bits: BitDiff | None = None

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        content: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.text:
            content["text"] = self.text
        return content | (self.bits.as_dict() if self.bits else {})


def tensor_diffs(one: Content, other: Content) -> Iterator[TensorDiff]:
    """Each tensor of two checkpoints, tied weights by one name."""
    left, right = same_names(one, other)
    for name in dict.fromkeys([*left.tensors, *right.tensors]):
        yield _compared(name, left.tensors.get(name), right.tensors.get(name))


def _compared(name: str, one: StoredTensor | None, other: StoredTensor | None) -> TensorDiff:
    if one is None or other is None:
        there = one or other
        assert there is not None
        text = f"{_dtype(there)} {list(there.shape)}"
        return TensorDiff(name, "only in B" if one is None else "only in A", text)
    if one.dtype != other.dtype:
        return TensorDiff(name, "dtype", f"{_dtype(one)} and {_dtype(other)}")
    if one.shape != other.shape:
        return TensorDiff(name, "shape", f"{list(one.shape)} and {list(other.shape)}")
    try:
        found = bit_diff(one.read(), other.read())
    except CheckpointUnreadable as error:
        return TensorDiff(name, "unreadable", error.what)
    return TensorDiff(name, "bits", bits=found) if found.changed else TensorDiff(name, "same")


def _dtype(stored: StoredTensor) -> str:
    return str(stored.dtype).removeprefix("torch.")
