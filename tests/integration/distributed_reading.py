"""What guards on several ranks recorded, by rank."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdc_guard import RunReader
from sdc_guard.digest import Digest
from sdc_guard.digest.reference import MASK64

Layers = dict[tuple[int, str, int, str], "Row"]


@dataclass(frozen=True)
class Row:
    """A row of the table `layers`."""

    measures: list[float]
    copies: int


@dataclass(frozen=True)
class Recorded:
    """The tables of a run.

    Attributes:
        layers: by rank, scope, step and name of the layer.
        steps: accumulation, skipped and loss scale, by rank and step.
        digests: of the state after each step and of gradients, by rank, step, kind and name.
        alerts: (rank, step, detector, name of the layer).
        events: (rank, step, kind, detail), without those that say what a device answered.
    """

    layers: Layers
    steps: dict[tuple[int, int], tuple[int, bool, float | None]]
    digests: dict[tuple[int, int, str, str], Digest]
    alerts: list[tuple[int, int, str, str | None]]
    events: list[tuple[int, int, str, str]]

    def of_rank(self, rank: int, scope: str) -> dict[tuple[int, str], list[float]]:
        """Measures by step and name."""
        return {
            (step, name): row.measures
            for (of, kind, step, name), row in self.layers.items()
            if (of, kind) == (rank, scope)
        }

    def copies(self, *scopes: str) -> dict[str, set[int]]:
        """The numbers of copies recorded for each layer in these scopes."""
        found = defaultdict(set)
        for (_, scope, _, name), row in self.layers.items():
            if scope in scopes:
                found[name].add(row.copies)
        return dict(found)

    def combined(self, *scopes: str) -> dict[tuple[int, str], float]:
        """Norms of whole gradients: √Σ norm²/copies over the ranks."""
        squares: dict[tuple[int, str], float] = defaultdict(float)
        for (_, scope, step, name), row in self.layers.items():
            if scope in scopes:
                squares[step, name] += row.measures[0] ** 2 / row.copies
        return {key: math.sqrt(value) for key, value in squares.items()}

    def sum_of_digests(self, ranks: range) -> dict[tuple[int, str, str], tuple[int, ...]]:
        """Digests of whole tensors: sums over the ranks that hold one copy of each."""
        sums: dict[tuple[int, str, str], Digest] = defaultdict(lambda: Digest(0, 0, 0))
        for (rank, *key), digest in self.digests.items():
            if rank in ranks:
                sums[tuple(key)] += digest  # type: ignore[index] # because key lost its type
        return {key: tuple(value) for key, value in sums.items()}


def recorded(run: Path) -> Recorded:
    """Read all of a run."""
    with RunReader(run) as reader:
        layers = reader.rows(
            "SELECT rank, scope, step, name, copies, norm, max_abs, mean_abs, nonfinite, zeros"
            " FROM layers JOIN layer_names USING (layer)"
        )
        steps = reader.rows("SELECT rank, step, accumulation, skipped, loss_scale FROM steps")
        digests = reader.rows(
            "SELECT rank, step, kind, name, h, s1, s2 FROM digests"
            " JOIN layer_names USING (layer) WHERE phase = 'after' OR kind = 'grad'"
        )
        alerts = reader.rows(
            "SELECT rank, step, detector, name FROM alerts"
            " LEFT JOIN layer_names USING (layer) ORDER BY ALL"
        )
        events = reader.rows(
            "SELECT rank, step, kind, detail FROM events WHERE kind <> 'known answer' ORDER BY ALL"
        )
    found: Layers = {}
    for rank, scope, step, name, copies, *measures in layers:
        assert (rank, scope, step, name) not in found, "two rows for one gradient"
        found[rank, scope, step, name] = Row([float(value) for value in measures], copies)
    return Recorded(
        found,
        {(rank, step): tuple(rest) for rank, step, *rest in steps},
        {(rank, step, kind, name): _digest(sums) for rank, step, kind, name, *sums in digests},
        alerts,
        events,
    )


def _digest(sums: list[Any]) -> Digest:
    return Digest(*(int(value) & MASK64 for value in sums))
