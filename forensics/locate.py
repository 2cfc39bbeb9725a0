"""From a differing tensor to its element and bits, proven against the recorded digests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from sdc_guard.digest import Digest, SingleChange, find_change
from sdc_guard.digest.reference import words
from sdc_guard.signals.capture import captured_path
from sdc_guard.store.trace_reader import TraceReader

from .compare import TensorDifference

_DIGEST = """
    SELECT h, s1, s2 FROM digests JOIN layer_names USING (layer)
    WHERE step = $step AND phase = $phase AND kind = $kind AND name = $name AND rank = $rank
"""


@dataclass(frozen=True)
class LocatedTensor:
    """A tensor that went wrong; `change` when exactly one element did, proven by the digest."""

    kind: str
    name: str
    change: SingleChange | None
    dtype: str

    def as_dict(self) -> dict[str, Any]:
        """The tensor in JSON output; bits in hexadecimal, values as text for NaN's sake."""
        content: dict[str, Any] = {"kind": self.kind, "name": self.name}
        if self.change is None:
            return content | {"index": None, "bits": None, "before": None, "after": None}
        return content | {
            "index": self.change.index,
            "bits": self.change.bits,
            "before": f"0x{self.change.before:x}",
            "after": f"0x{self.change.after:x}",
            "before_value": str(value_of(self.change.before, self.dtype)),
            "after_value": str(value_of(self.change.after, self.dtype)),
        }


def locate(
    original: TraceReader,
    replayed: TraceReader,
    step: int,
    phase: str,
    difference: TensorDifference,
) -> LocatedTensor:
    """Solve which element differs, given the sound tensor that the replay captured.

    Args:
        original, replayed: the two runs; the replay's folder holds the captured tensor.
        step, phase: the moment at which the tensor differs.
        difference: the tensor.
    """
    layer = next(x for x in replayed.run_file.named if x.name == difference.name)
    key = {
        "step": step,
        "phase": phase,
        "kind": difference.kind,
        "name": difference.name,
        "rank": difference.rank,
    }
    wrong, right = (_digest(reader, key) for reader in (original, replayed))
    change, dtype = None, layer.dtype
    path = captured_path(replayed.run, (difference.kind, layer.id), difference.rank)
    if wrong and right and path.is_file():
        content = path.read_bytes()
        dtype = _word_dtype(layer.dtype, len(content), layer.numel)
        change = _solve(content, dtype, right, wrong)
    return LocatedTensor(difference.kind, difference.name, change, dtype)


def _digest(reader: TraceReader, key: dict[str, Any]) -> Digest | None:
    rows = reader.rows(_DIGEST, key)
    return Digest(*(value % 2**64 for value in rows[0])) if rows else None


def _solve(content: bytes, dtype: str, right: Digest, wrong: Digest) -> SingleChange | None:
    kind: torch.dtype = getattr(torch, dtype)
    if not content or len(content) % kind.itemsize:
        return None
    row = words(torch.frombuffer(bytearray(content), dtype=kind))
    found = find_change(row, wrong, right)  # from the tensor at hand, the sound one, back
    return None if found is None else SingleChange(found.index, found.after, found.before)


def _word_dtype(layer: str, size: int, numel: int) -> str:
    """The dtype of the words that were captured, by the layer's and by their own size.

    A complex element is two words; moments may be wider than the parameter that they belong to.
    """
    kind: torch.dtype = getattr(torch, layer)
    real = kind.to_real()
    count = numel * (2 if kind.is_complex else 1)
    if count and size == count * real.itemsize:
        return str(real).removeprefix("torch.")
    return {4: "float32", 8: "float64"}.get(size // count if count else 0, layer)


def value_of(bits: int, dtype: str) -> Any:
    """The number that `bits` are in a torch dtype given by name."""
    kind: torch.dtype = getattr(torch, dtype)
    content = bits.to_bytes(kind.itemsize, sys.byteorder)
    return torch.frombuffer(bytearray(content), dtype=kind)[0].item()
