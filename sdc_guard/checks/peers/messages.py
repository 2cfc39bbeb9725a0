"""What a rank tells of its gradients, as bytes, and how much of it."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...detect.step_signals import LAYER_STATISTICS, StepSignals, layer_statistics

MEASURES: Final = len(LAYER_STATISTICS)
_HEAD: Final = struct.Struct("<qqq")  # first step of the window, number of steps, of layers
BYTES: Final = 4 * MEASURES  # of a layer and step
MOST_STREAMS: Final = 65_536  # (rank, layer): rank 0 remembers 128 steps of three measures of each
MOST_BYTES: Final = 4 << 20  # of all ranks, each time: goes through rank 0's store


@dataclass(frozen=True)
class Share:
    """Which part of what was measured is compared, the same on every rank.

    Attributes:
        layers: every so many-th layer, by its number.
        steps: every so many-th step, by its number.
    """

    layers: int
    steps: int

    @classmethod
    def of(cls, ranks: int, layers: int, every: int) -> Share:
        """As much as the limits allow.

        Args:
            ranks: how many.
            layers: how many each measures.
            every: steps that are compared together.
        """
        by_layers = max(1, -(-ranks * layers // MOST_STREAMS))
        size = ranks * -(-layers // by_layers) * every * BYTES
        return cls(by_layers, min(every, max(1, -(-size // MOST_BYTES))))

    @property
    def whole(self) -> bool:
        """Whether it is all of it."""
        return (self.layers, self.steps) == (1, 1)

    def __str__(self) -> str:
        parts = [
            f"one {what} in {n}"
            for what, n in (("layer", self.layers), ("step", self.steps))
            if n > 1
        ]
        return " and ".join(parts) or "everything"


@dataclass(frozen=True)
class Window:
    """What a rank measured in some steps.

    Attributes:
        first: the first step that the window may hold.
        steps: int64 (steps,), those that were measured, rising.
        layers: int32 (layers,), numbers of the run's layers, rising.
        values: float32 (steps, MEASURES, layers), see `step_signals.layer_statistics`; NaN for
            what was not measured or is not to be judged.
    """

    first: int
    steps: NDArray[np.int64]
    layers: NDArray[np.int32]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """Measures of some steps as the recorder gives them.

    Attributes:
        steps: their numbers, rising.
        layers: int32 (layers,), the layers' numbers.
        numel: int64 (layers,), their elements.
        signals: of these steps and layers.
    """

    steps: Sequence[int]
    layers: NDArray[np.int32]
    numel: NDArray[np.int64]
    signals: StepSignals


def window_of(first: int, parts: Sequence[Measured], share: Share) -> Window:
    """What of these measures is compared; all parts are of the same layers."""
    if not parts:
        return Window(
            first, np.empty(0, np.int64), np.empty(0, np.int32), np.empty((0, MEASURES, 0), "f4")
        )
    steps = np.concatenate([np.asarray(part.steps, dtype=np.int64) for part in parts])
    layers, numel = parts[0].layers, parts[0].numel
    order = np.argsort(layers, kind="stable")
    order = order[layers[order] % share.layers == 0]
    taken = steps % share.steps == 0
    signals = StepSignals(
        *(
            np.concatenate([getattr(part.signals, name) for part in parts])[taken][:, order]
            for name in ("norms", "max_abs", "zeros", "nonfinite")
        )
    )
    values = layer_statistics(signals, numel[order]).astype(np.float32)
    # a layer that is entirely zero on one rank is usual: an expert that got no token there
    values[:, 2][signals.norms == 0] = np.nan
    return Window(first, steps[taken], layers[order], values)


def packed(window: Window) -> bytes:
    """A window as bytes: 24, 8 a step, 4 a layer, and BYTES for each step and layer."""
    head = _HEAD.pack(window.first, len(window.steps), len(window.layers))
    arrays = (
        window.steps.astype("<i8"),
        window.layers.astype("<i4"),
        window.values.astype("<f4"),
    )
    return head + b"".join(array.tobytes() for array in arrays)


def read(content: bytes) -> Window:
    """The window of these bytes.

    Raises:
        ValueError: they are not those of one.
    """
    try:
        first, steps, layers = _HEAD.unpack_from(content)
    except struct.error as error:
        raise ValueError(f"no window: {len(content)} bytes") from error
    at, sizes = _HEAD.size, (8 * steps, 4 * layers, BYTES * steps * layers)
    if min(steps, layers) < 0 or len(content) != at + sum(sizes):
        raise ValueError(f"no window of {steps} steps and {layers} layers: {len(content)} bytes")
    ends = itertools.accumulate(sizes, initial=at)
    numbers, names, values = (content[a:b] for a, b in itertools.pairwise(ends))
    return Window(
        first,
        np.frombuffer(numbers, "<i8"),
        np.frombuffer(names, "<i4"),
        np.frombuffer(values, "<f4").reshape(steps, MEASURES, layers),
    )
