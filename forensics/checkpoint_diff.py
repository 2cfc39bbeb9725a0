"""What differs between checkpoints, tensor by tensor: never more than two tensors in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from sdc_guard.archive.nonfinite import NonFinite, nonfinite
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.inject.formats import FORMATS

from .aliases import same_names
from .bit_diff import BitDiff, bit_diff
from .content import Content, StoredTensor
from .repeating import read_alike
from .same_bits import same_bits
from .state_kinds import OTHER, kind_of

_WORDS: Final = (1, 2, 4, 8)  # bytes of a word whose bits can be compared


@dataclass(frozen=True)
class TensorDiff:
    """One tensor in two checkpoints.

    Attributes:
        name: of the tensor.
        kind: "same", "bits" if only those differ, "dtype", "shape", "only in A", "only in B",
            "unreadable" or, of a dtype that nothing is known of, "not compared".
        text: dtypes, shapes or the reason, where `kind` is about these.
        bits: where `kind` is "bits".
        role: parameters, first moments, second moments or other.
        dtype, shape: where both have the same.
        nonfinite: of the tensor in A and in B; None where one could not be looked at.
    """

    name: str
    kind: str
    text: str = ""
    bits: BitDiff | None = None
    role: str = OTHER
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    nonfinite: tuple[NonFinite, NonFinite] | None = None

    @property
    def unusual(self) -> float:
        """How little it looks as a training step leaves it; a rank to sort by, and no verdict.

        Decades between the largest change and the typical one, and decades by which few elements
        changed: a step moves nearly all elements, and none of them a million times as far.
        """
        if self.bits is None or not self.bits.changed:
            return -1.0
        if self.nonfinite is not None and self.nonfinite[0].nan != self.nonfinite[1].nan:
            return math.inf
        few = math.log10(self.bits.numel / self.bits.changed)
        largest, typical = self.bits.largest, self.bits.typical
        far = math.log10(largest / typical) if largest and typical else 0.0
        return few + far

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        content: dict[str, Any] = {"name": self.name, "kind": self.kind, "state": self.role}
        if self.text:
            content["text"] = self.text
        if self.nonfinite is not None and any(one.first is not None for one in self.nonfinite):
            content["nonfinite"] = {
                which: one.as_dict() for which, one in zip("ab", self.nonfinite, strict=True)
            }
        if self.bits is None:
            return content
        unusual = self.unusual
        rank = None if math.isinf(unusual) else round(unusual, 3)
        return content | {"dtype": dtype_name(self.dtype), "unusual": rank} | self.bits.as_dict()


def tensor_diffs(one: Content, other: Content) -> Iterator[TensorDiff]:
    """Each tensor of two checkpoints, tied weights by one name."""
    left, right = same_names(one, other)
    for name in dict.fromkeys([*left.tensors, *right.tensors]):
        yield _compared(name, left.tensors.get(name), right.tensors.get(name))


def _compared(name: str, one: StoredTensor | None, other: StoredTensor | None) -> TensorDiff:
    if one is None or other is None:
        there = one or other
        assert there is not None
        text = f"{dtype_name(there.dtype)} {list(there.shape)}"
        only = "only in B" if one is None else "only in A"
        return TensorDiff(name, only, text, role=kind_of(name, there.dtype))
    role = kind_of(name, one.dtype)
    try:
        if one.dtype != other.dtype:
            return TensorDiff(name, "dtype", _dtypes(one, other), role=role)
        if one.shape != other.shape:
            return TensorDiff(name, "shape", _shapes(one, other), role=role)
        a, b = read_alike([one, other])
        return _by_bits(name, a, b, role)
    except CheckpointUnreadable as error:
        return TensorDiff(name, "unreadable", error.what, role=role)


def _by_bits(name: str, a: torch.Tensor, b: torch.Tensor, role: str) -> TensorDiff:
    word = a.dtype.itemsize // (2 if a.is_complex() else 1)
    if a.is_quantized or b.is_quantized or word not in _WORDS:
        text = f"{dtype_name(a.dtype)} has no words whose bits have a place"
        return TensorDiff(name, "not compared", text, role=role)
    before = nonfinite(a)
    found = None if same_bits(a, b) else bit_diff(a, b)
    odd = (before, nonfinite(b) if found else before)
    kind = "bits" if found else "same"
    return TensorDiff(name, kind, "", found, role, a.dtype, tuple(a.shape), odd)


def _dtypes(one: StoredTensor, other: StoredTensor) -> str:
    """Both dtypes, and whether one is the other, rounded."""
    text = f"{dtype_name(one.dtype)} and {dtype_name(other.dtype)}"
    if one.shape != other.shape:
        return f"{text}, shapes {list(one.shape)} and {list(other.shape)}"
    if one.dtype.itemsize == other.dtype.itemsize or not (_is_float(one) and _is_float(other)):
        return text
    wide, narrow, name = (
        (one, other, "B is A") if one.dtype.itemsize > other.dtype.itemsize else
        (other, one, "A is B")
    )  # fmt: skip
    rounded = same_bits(wide.read().to(narrow.dtype), narrow.read())
    return f"{text}; {name}, rounded" if rounded else f"{text}; not the same, rounded"


def _is_float(stored: StoredTensor) -> bool:
    word = FORMATS.get(stored.dtype)
    return stored.dtype.is_floating_point and word is not None and word.element is not None


def _shapes(one: StoredTensor, other: StoredTensor) -> str:
    """Both shapes, and whether the elements are the same in the same order."""
    text = f"{list(one.shape)} and {list(other.shape)}"
    if one.numel != other.numel:
        return text
    equal = same_bits(one.read().reshape(-1), other.read().reshape(-1))
    return f"{text}; the same elements in the same order" if equal else text


def dtype_name(dtype: torch.dtype | None) -> str:
    """As users write it."""
    return str(dtype).removeprefix("torch.")
