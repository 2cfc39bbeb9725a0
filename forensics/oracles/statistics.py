"""Whether a checkpoint's values look like a training's. It suspects and does not prove."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import xxhash

from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content
from ..measured import ZERO_RUN, Measured, growth, is_measured, measure
from ..tensor_roles import is_moment
from .adam_state import impossible_moments
from .judgement import Judgement
from .master_copy import copies_that_differ
from .neighbours import Neighbours

# Nothing of a training is so large, nor a layer so small: both are near the ends of float32's
# range, where one flipped bit of an exponent leads. A layer at 1e-42 in one save is a known case.
LARGEST: Final = 1e30
SMALLEST: Final = 1e-30
# benchmarks/calibrate_checkpoints.py, 250 healthy checkpoints of seeds that no test uses: a layer's
# largest weight was at most 26 times its median, and 12 times what it was in the untrained model.
# Larger models have heavier tails: both have to be exceeded. Of a float32's bits only the highest
# of the exponent makes a weight below 2 that large: of most flips nothing is seen here.
PEAK: Final = 1e3
GROWTH: Final = 1e2
_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class _Looked:
    """A tensor's values, a hash of its bits, and whether small updates are not lost to rounding."""

    measured: Measured
    bits: int
    wide: bool


class StatisticsOracle:
    """Judges by values that are not finite, too large, too small, or do not move any more.

    A weight is compared with what it was in the first checkpoint that can be read, so that what is
    corrupt stays corrupt; the first one is judged by itself.

    Args:
        candidates: by step.
        near: their contents, if they are opened elsewhere, too.
    """

    name = "statistics"
    proves = False
    persists = False
    concurrent = True
    cost: float | None = None

    def __init__(self, candidates: Sequence[Checkpoint], *, near: Neighbours | None = None) -> None:
        self._near = near or Neighbours(candidates)
        self._looked: dict[Path, Mapping[str, _Looked]] = {}
        self._turns: dict[Path, threading.Lock] = {}
        self._lock = threading.Lock()

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt by the first tensors that are not as a training leaves them, as a suspicion."""
        content = self._near.content(checkpoint)
        if isinstance(content, str):
            return Judgement("untestable", content)
        try:
            now = self._look(checkpoint, content)
            found = list(self._strange(checkpoint, content, now))
        except CheckpointUnreadable as error:
            return Judgement("untestable", error.what)
        if found:
            more = f"; and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
            return Judgement("corrupt", "; ".join(found[:_MOST_NAMED]) + more)
        if not now:
            return Judgement("untestable", "no floating-point tensors in it")
        return Judgement("clean", f"values of {_tensors(len(now))} as a training leaves them")

    def _strange(
        self, one: Checkpoint, content: Content, now: Mapping[str, _Looked]
    ) -> Iterator[str]:
        first = self._reference(one)
        for name, looked in now.items():
            earlier = first.get(name)
            why = strange(name, looked.measured, earlier.measured if earlier else None)
            if why:
                yield f"{name}: {why}"
        yield from impossible_moments(content)
        yield from copies_that_differ(content)
        yield from self._frozen(one, now, first)

    def _reference(self, one: Checkpoint) -> Mapping[str, _Looked]:
        first = self._near.first()
        return {} if first is None or first.path == one.path else self._of(first)

    def _frozen(
        self, one: Checkpoint, now: Mapping[str, _Looked], first: Mapping[str, _Looked]
    ) -> Iterator[str]:
        """Weights that moved once, and have the bits of the checkpoint before while most move."""
        before = self._near.before(one)
        if not before:
            return
        earlier = self._of(before[0])
        trained = [
            name
            for name in now
            if not is_moment(name) and now[name].wide and now[name].measured.numel > 1
            and name in earlier and name in first
            and first[name].bits != earlier[name].bits
        ]  # fmt: skip
        still = [name for name in trained if now[name].bits == earlier[name].bits]
        if still and 2 * len(still) < len(trained):
            step = before[0].step
            for name in still:
                yield f"{name}: the bits of step {step}, while most layers moved"

    def _of(self, checkpoint: Checkpoint) -> Mapping[str, _Looked]:
        """What a neighbour's tensors are like; {} if it cannot be read."""
        content = self._near.content(checkpoint)
        if isinstance(content, str):
            return {}
        try:
            return self._look(checkpoint, content)
        except CheckpointUnreadable:
            return {}

    def _look(self, checkpoint: Checkpoint, content: Content) -> Mapping[str, _Looked]:
        with self._lock:
            turn = self._turns.setdefault(checkpoint.path, threading.Lock())
        with turn:  # the first checkpoint is asked for by all judges at once
            known = self._looked.get(checkpoint.path)
            if known is None:
                known = self._looked[checkpoint.path] = {
                    name: _looked(stored.read())
                    for name, stored in content.tensors.items()
                    if is_measured(stored.dtype) and stored.numel
                }
        return known


def _looked(tensor: torch.Tensor) -> _Looked:
    """In one read of the tensor."""
    bits = xxhash.xxh3_64()
    found = measure(tensor.detach().resolve_neg(), bits.update)
    return _Looked(found, bits.intdigest(), tensor.dtype.itemsize >= 4)


def strange(name: str, now: Measured, first: Measured | None) -> str | None:
    """What is not as a training leaves it; None if nothing is.

    Args:
        name: of the tensor.
        now: its values.
        first: its values in the first checkpoint; None if this is the first.
    """
    if now.nan:
        return f"{_elements(now.nan)} NaN"
    if now.infinite and not now.mask:
        return f"{_elements(now.infinite)} infinite"
    if now.largest > LARGEST:
        return f"as large as {now.largest:.3g}"
    if is_moment(name) or now.numel < 2:  # moments may span all of the range
        return None
    return _strange_weight(now, first)


def _strange_weight(now: Measured, first: Measured | None) -> str | None:
    if 0 < now.largest < SMALLEST:
        return f"none of its {now.numel:,} elements is larger than {now.largest:.3g}"
    peak = growth(now.largest, now.typical) if now.typical else 1.0
    if first is None:
        return _peak(now) if peak > PEAK * GROWTH else None
    if first.zeros < first.numel and now.zeros == now.numel:
        return "all zeros, and it was not in the first checkpoint"
    if peak > PEAK and growth(now.largest, first.largest) > GROWTH:
        return f"{_peak(now)}; in the first checkpoint its largest was {first.largest:.3g}"
    if now.zero_run >= ZERO_RUN and now.zero_run > 2 * first.zero_run:
        return f"{now.zero_run:,} zeros in a row, and it had not in the first checkpoint"
    if now.constant_rows > first.constant_rows:
        more = now.constant_rows - first.constant_rows
        return f"{more:,} more of its {now.rows:,} rows are one value throughout than at first"
    return None


def _peak(now: Measured) -> str:
    return f"an element of {now.largest:.3g}, where {now.typical:.3g} is typical"


def _elements(count: int) -> str:
    return "one element is" if count == 1 else f"{count:,} elements are"


def _tensors(count: int) -> str:
    return "1 tensor are" if count == 1 else f"{count:,} tensors are"
