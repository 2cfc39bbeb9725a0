"""Which part of the optimizer's state is looked at in which step."""

from __future__ import annotations

from collections.abc import Iterable

from ..detect.invariants import Slice

SLICE = 1 << 16  # elements: what is made of them in float32 stays in a processor's cache


class Turns:
    """Shares slices of all layers out over the steps, so that each is due once in `every` steps.

    Which are due follows from the step's number alone: a replay looks at the same ones.

    Args:
        sizes: (number of the layer, elements of its parameter).
        every: steps of one round.
        elements: of a slice, at most.
    """

    def __init__(
        self, sizes: Iterable[tuple[int, int]], *, every: int, elements: int = SLICE
    ) -> None:
        self._every = every
        self._slices = [
            Slice(layer, start, min(start + elements, size))
            for layer, size in sizes
            for start in range(0, size, elements)
        ]

    def due(self, step: int) -> list[Slice]:
        """The slices of one step."""
        phase, count = step % self._every, len(self._slices)
        first = phase * count // self._every
        return self._slices[first : (phase + 1) * count // self._every]
