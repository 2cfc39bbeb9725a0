"""The rows of the table `layers`: whose gradients were measured where, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .evidence import BeforeStep
from .signals.measures import measures
from .signals.placement import Placement


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

    rows: list[int]
    measures: NDArray[np.float64]
    scope: str | list[str]
    copies: int | NDArray[np.int32]
    reduced: bool

    @property
    def total_norm(self) -> float:
        """Norm of all these gradients together."""
        return float(np.sqrt(np.square(self.measures[:, 0]).sum()))


def layer_rows(
    evidence: BeforeStep,
    numel: NDArray[np.int64],
    placements: Sequence[Placement],
    *,
    replicas: int,
    reduces: bool,
) -> list[LayerRows]:
    """The measures of a step, this rank's own before the reduced ones.

    Args:
        evidence: its copies are read.
        numel: elements of each whole tensor.
        placements: of each gradient on this rank.
        replicas: ranks among which plain gradients are reduced.
        reduces: whether they are known to be. If not, gradients that no reduction changed in a
            single bit are taken for what they look like: this rank's own alone.
    """
    scale = 1.0 if evidence.scale is None else float(evidence.scale.get())
    found = []
    for gradients in evidence.gradients:
        rows = gradients.rows
        values = measures(gradients.sums.get().numpy(), numel[rows], scale)
        if gradients.reduced:
            found.append(LayerRows(rows, values, "reduced", replicas, True))
        else:
            found.append(_own(rows, values, placements))
    if len(found) > 1 and not reduces and _unchanged(found):
        return found[:1]
    return found


def _own(
    rows: list[int], values: NDArray[np.float64], placements: Sequence[Placement]
) -> LayerRows:
    scopes = [placements[row].scope for row in rows]
    if set(scopes) <= {"local"}:
        return LayerRows(rows, values, "local", 1, False)
    copies = np.array([placements[row].copies for row in rows], dtype=np.int32)
    return LayerRows(rows, values, scopes, copies, False)


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


def judged(found: list[LayerRows], layers: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What the detectors look at: this rank's own measures before reduced ones.

    A reduction spreads one rank's NaN to all of them; a rank's own gradient tells whose it is.

    Returns:
        norms, float64 (layers,), NaN for a layer without a gradient; and non-finite elements.
    """
    norms = np.full(layers, np.nan)
    nonfinite = np.zeros(layers, dtype=np.int64)
    for part in reversed(found):
        norms[part.rows] = part.measures[:, 0]
        nonfinite[part.rows] = part.measures[:, 3].astype(np.int64)
    return norms, nonfinite
