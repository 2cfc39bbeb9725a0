"""Steps of which nothing is to be said but that they were: the rows of many of them at once.

To judge and write ten steps together takes little more than one of them: between the kernels of a
training Python's own code is out of the processor's caches each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .detect.carried import DigestTable, changed
from .evidence import AfterStep, BeforeStep
from .signals.sums import measures

Evidence = Sequence[BeforeStep | AfterStep]


def counters_hold(evidence: Evidence) -> bool:
    """Whether every step counter is what it should be; waits for copies."""
    return not any(part.wrong() for piece in evidence for part in piece.counters)


def is_plain(evidence: BeforeStep, layers: int) -> bool:
    """Whether a step was applied, and measured by nothing but this rank's own gradients of all."""
    return (
        evidence.applied
        and not evidence.skipped
        and evidence.found_inf is None
        and evidence.scale is None
        and len(evidence.gradients) == 1
        and not evidence.gradients[0].reduced
        and len(evidence.gradients[0].rows) == layers
    )


def left_behind(before: DigestTable | None, evidence: Evidence) -> tuple[bool, DigestTable | None]:
    """Whether each step found what the one before it left, and what the last one left.

    Args:
        before: what was left before the first of them.
        evidence: in its order.
    """
    left, newest = before, None
    for piece in evidence:
        if isinstance(piece, AfterStep):
            newest = piece
        elif piece.digests.keys:
            left = left if newest is None else _table(newest)
            newest = None
            if left is not None and changed(left, _table(piece)):
                return False, before
    return True, left if newest is None else _table(newest)


def _table(piece: BeforeStep | AfterStep) -> DigestTable:
    return DigestTable(piece.digests.keys, piece.digest_rows.array())


def measured(steps: Sequence[BeforeStep], numel: NDArray[np.int64]) -> NDArray[np.float64]:
    """MEASURES of the gradients of plain steps, float64, shape (steps, layers, 5)."""
    sums = np.stack([step.gradients[0].sums.array() for step in steps])
    flat = measures(sums.reshape(-1, sums.shape[2]), np.tile(numel, len(steps)))
    return flat.reshape(sums.shape)


def losses_of(steps: Sequence[BeforeStep]) -> list[float | None]:
    """The loss of each step, or None where it was not observed."""
    return [step.loss for step in steps]


def layer_columns(
    steps: Sequence[BeforeStep], order: NDArray[np.int32], values: NDArray[np.float64]
) -> dict[str, Any]:
    """Columns of the table "layers": `order` are the layers' numbers."""
    columns = values.reshape(-1, values.shape[2]).T
    return {
        "step": np.repeat([step.step for step in steps], len(order)),
        "layer": np.tile(order, len(steps)),
        "norm": columns[0],
        "max_abs": columns[1],
        "mean_abs": columns[2],
        "nonfinite": columns[3].astype(np.int64),
        "zeros": columns[4].astype(np.int64),
        "scope": "local",
        "copies": 1,
    }


def step_columns(
    steps: Sequence[BeforeStep], losses: list[float | None], values: NDArray[np.float64]
) -> dict[str, Any]:
    """Columns of the table "steps"."""
    return {
        "step": [step.step for step in steps],
        "time": [step.time for step in steps],
        "loss": losses,
        "lr": [step.lr for step in steps],
        "grad_norm": np.sqrt(np.square(values[:, :, 0]).sum(axis=1)),
        "skipped": False,
        "accumulation": [step.accumulation for step in steps],
        "batch_hash": [step.batch_hash for step in steps],
        "step_seconds": [step.step_seconds for step in steps],
        "tokens": [step.tokens for step in steps],
    }


def digest_columns(evidence: Evidence) -> dict[str, Any]:
    """Columns of the table "digests", empty if there are none."""
    held = [piece for piece in evidence if piece.digests.keys]
    if not held:
        return {}
    counts = [len(piece.digests.keys) for piece in held]
    keys = [key for piece in held for key in piece.digests.keys]
    rows = np.concatenate([piece.digest_rows.array() for piece in held])
    phases = ["after" if isinstance(piece, AfterStep) else "before" for piece in held]
    return {
        "step": np.repeat([piece.step for piece in held], counts),
        "phase": [phase for phase, count in zip(phases, counts, strict=True) for _ in range(count)],
        "kind": [kind for kind, _ in keys],
        "layer": np.array([layer for _, layer in keys], dtype=np.int32),
        "h": rows[:, 0],
        "s1": rows[:, 1],
        "s2": rows[:, 2],
    }
