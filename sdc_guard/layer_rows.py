"""The rows of the table `layers`: whose gradients were measured where, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .detect.step_signals import StepSignals
from .signals.sums import measures


@dataclass(frozen=True)
class LayerRows:
    """Measures of one kind.

    Attributes:
        rows: places in the list of layers.
        measures: float64 (len(rows), 5), see `signals.measures`.
        scope: one for all, or one a row.
        copies: ranks that hold the same elements, one for all or one a row.
        reduced: whether they were measured after a reduction over ranks.
    """

    rows: NDArray[np.intp]
    measures: NDArray[np.float64]
    scope: str | list[str]
    copies: int | NDArray[np.int32]
    reduced: bool

    @property
    def total_norm(self) -> float:
        """Norm of all these gradients together."""
        return float(np.sqrt(np.square(self.measures[:, 0]).sum()))


class Place(Protocol):
    """Which part of a tensor a rank holds; see `signals.placement`."""

    @property
    def scope(self) -> str:
        """Of the row."""

    @property
    def copies(self) -> int:
        """Ranks that hold the same elements."""


@dataclass(frozen=True)
class Sums:
    """Sums of some gradients.

    Attributes:
        rows: places in the list of layers.
        sums: float64 (len(rows), 5).
        reduced: whether they were measured after a reduction over ranks.
    """

    rows: NDArray[np.intp]
    sums: NDArray[np.float64]
    reduced: bool


class Held:
    """What this rank holds of each tensor; `plain` if it is all of each.

    Args:
        placements: of the gradients, in the order of the layers. Read at each step: that of a
            distributed gradient is known when the first one is there.
    """

    def __init__(self, placements: Sequence[Place]) -> None:
        self.plain = all(place.scope == "local" for place in placements)
        self._placements = placements

    def places(self) -> list[tuple[str, int]]:
        """Scope and copies of each."""
        return [(place.scope, place.copies) for place in self._placements]

    def own(self, rows: NDArray[np.intp], values: NDArray[np.float64]) -> LayerRows:
        """Measures of this rank's own gradients as rows."""
        if self.plain:
            return LayerRows(rows, values, "local", 1, False)
        places = [self._placements[row] for row in rows]
        copies = np.array([place.copies for place in places], dtype=np.int32)
        return LayerRows(rows, values, [place.scope for place in places], copies, False)


def layer_rows(
    parts: Sequence[Sums],
    scale: float,
    numel: NDArray[np.int64],
    held: Held,
    *,
    replicas: int,
    reduces: bool,
) -> list[LayerRows]:
    """The measures of a step, this rank's own before the reduced ones.

    Args:
        parts: of all its gradients.
        scale: the loss scale by which they are too large.
        numel: elements of each whole tensor.
        held: of each gradient, what this rank holds.
        replicas: ranks among which plain gradients are reduced.
        reduces: whether they are known to be. If not, gradients that no reduction changed in a
            single bit are taken for what they look like: this rank's own alone.
    """
    found = []
    for part in parts:
        values = measures(part.sums, numel[part.rows], scale)
        if part.reduced:
            found.append(LayerRows(part.rows, values, "reduced", replicas, True))
        else:
            found.append(held.own(part.rows, values))
    if len(found) > 1 and not reduces and _unchanged(found):
        return [part for part in found if not part.reduced]
    return found


def _unchanged(found: list[LayerRows]) -> bool:
    own = {row: values for part in found if not part.reduced for row, values in _each(part)}
    return all(
        row in own and np.array_equal(own[row], values, equal_nan=True)
        for part in found
        if part.reduced
        for row, values in _each(part)
    )


def _each(part: LayerRows) -> Any:
    return zip(part.rows, part.measures, strict=True)


def judged(found: list[LayerRows], layers: int) -> StepSignals:
    """What the detectors look at: this rank's own measures before reduced ones.

    A reduction spreads one rank's NaN to all of them; a rank's own gradient tells whose it is.
    """
    values = np.zeros((layers, 5))
    values[:, :2] = np.nan
    for part in reversed(found):
        values[part.rows] = part.measures
    return signals_of(values)


def signals_of(values: NDArray[np.float64]) -> StepSignals:
    """Measures as what the detectors look at.

    Args:
        values: float64 (layers, 5) or (steps, layers, 5), see `signals.measures`; norm and
            max|g| NaN for a layer without a gradient.
    """
    return StepSignals(
        norms=values[..., 0],
        max_abs=values[..., 1],
        zeros=values[..., 4].astype(np.int64),
        nonfinite=values[..., 3].astype(np.int64),
    )
