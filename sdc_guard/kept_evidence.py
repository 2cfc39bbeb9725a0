"""Evidence as frames of the ring, so that a step's rows can be made after the process was killed.

Rows are made and judged many steps at once, up to a second late. A frame holds what they are made
of, as MessagePack: plain numbers, names and little-endian arrays; nothing in it can be executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .layer_rows import Held, LayerRows, Sums, layer_rows
from .signals.batch_hash import folded_all
from .store.rows import Rows

if TYPE_CHECKING:
    from .detect.carried import Key
    from .evidence import AfterStep, BeforeStep

BEFORE: Final = "before"
AFTER: Final = "after"
_STEPS: Final = 72  # of which evidence waits to be judged, and rows to be published
_PER_LAYER, _PER_STEP = 48, 1024  # bytes of a frame
_PER_DIGEST: Final = 64
_SMALL_BUDGET: Final = 1.0  # percent
# some 6,000 steps of a few layers: seconds of a fast loop, where the disk or the core is busy
_LEAST: Final = 2 << 20
_NO_DIGESTS: Final[tuple[list[str], list[int], bytes]] = [], [], b""


class Place:
    """What a rank holds of a tensor, as a frame has it; see `signals.placement`."""

    def __init__(self, scope: str, copies: int) -> None:
        self.scope, self.copies = scope, copies


def room(
    layers: int, *, budget: float | None = 0.0, gradients: bool = False, buffers: int = 0
) -> int:
    """Bytes of a ring that holds what is not yet published.

    Args:
        layers: that are measured.
        budget: percent of a step's time for digests; of a large one, as of None, each step may
            have those of all parameters and both moments, twice.
        gradients: whether each step has those of all gradients.
        buffers: whose digests each step has twice.
    """
    many = budget is None or budget > _SMALL_BUDGET
    per_layer = _PER_LAYER + _PER_DIGEST * ((6 if many else 0) + gradients)
    needed = 2 * _STEPS * (per_layer * layers + 2 * _PER_DIGEST * buffers + _PER_STEP)
    return max(needed, _LEAST)


def before_frame(
    attempt: int,
    evidence: BeforeStep,
    order: NDArray[np.int32],
    held: Held,
    *,
    replicas: int,
    reduces: bool,
    digests: bool,
) -> tuple[Any, ...]:
    """Evidence of what was found before a step; its copies have arrived.

    Args:
        attempt: number of this start of the training.
        evidence: of the step.
        order: numbers of the layers, in the order of their measures.
        held: of each gradient, what this rank holds.
        replicas: ranks among which plain gradients are reduced.
        reduces: whether they are known to be.
        digests: whether those are kept too.
    """
    every = len(order)
    scale, found_inf = evidence.scale, evidence.found_inf
    return (
        BEFORE,
        attempt,
        evidence.step,
        evidence.time,
        evidence.step_seconds,
        evidence.lr,
        evidence.loss,
        evidence.accumulation,
        [batch.content() for batch in evidence.batches],
        evidence.tokens,
        None if scale is None else float(scale.get()),
        None if found_inf is None else float(found_inf.get()),
        evidence.skipped,
        evidence.applied,
        order.tobytes(),
        None if held.plain else held.places(),
        replicas,
        reduces,
        [
            (
                None if len(part.rows) == every else part.rows,
                part.sums.content(),
                part.reduced,
            )
            for part in evidence.gradients
        ],
        *(_digests(evidence) if digests else _NO_DIGESTS),
    )


def after_frame(attempt: int, evidence: AfterStep, *, digests: bool) -> tuple[Any, ...] | None:
    """Evidence of what a step left behind; its copies have arrived. None if it makes no rows."""
    shadow = None
    if evidence.shadow is not None and evidence.shadow_losses is not None:
        first, second = evidence.shadow_losses.array().tolist()
        shadow = first, second, evidence.shadow_hash, evidence.shadow.seconds
    table = _digests(evidence) if digests else _NO_DIGESTS
    if shadow is None and not table[0]:
        return None
    return AFTER, attempt, evidence.step, shadow, *table


def rows_of(frame: Sequence[Any], numel: dict[int, int]) -> list[Rows]:
    """The rows that a frame's evidence makes.

    Args:
        frame: unpacked.
        numel: elements of each layer, by its number.
    """
    return _rows_before(frame, numel) if frame[0] == BEFORE else _rows_after(frame)


def _digests(evidence: BeforeStep | AfterStep) -> tuple[list[str], list[int], bytes]:
    keys: tuple[Key, ...] = evidence.digests.keys
    if not keys:
        return _NO_DIGESTS
    return (
        [kind for kind, _ in keys],
        [layer for _, layer in keys],
        evidence.digest_rows.content(),
    )


def _rows_before(frame: Sequence[Any], numel: dict[int, int]) -> list[Rows]:
    (
        _, attempt, step, time, seconds, lr, loss, accumulation, batches, tokens, scale, found_inf,
        skipped, applied, order, places, replicas, reduces, parts, *digests,
    ) = frame  # fmt: skip
    layers = np.frombuffer(order, dtype=np.int32)
    held = Held([Place("local", 1)] if places is None else [Place(*place) for place in places])
    found = layer_rows(
        [_sums(part, len(layers)) for part in parts],
        1.0 if scale is None else scale,
        np.array([numel.get(int(layer), 0) for layer in layers], dtype=np.int64),
        held,
        replicas=replicas,
        reduces=reduces,
    )
    columns = {
        "attempt": attempt, "step": step, "time": time, "loss": loss, "lr": lr,
        "grad_norm": found[-1].total_norm if found else None, "loss_scale": scale,
        "skipped": skipped or not applied or (found_inf or 0.0) > 0, "accumulation": accumulation,
        "batch_hash": folded_all(batches), "step_seconds": seconds, "tokens": tokens,
    }  # fmt: skip
    return [
        *(
            Rows("layers", layer_columns(attempt, step, part, layers), len(part.rows))
            for part in found
        ),
        *_digest_rows(attempt, step, BEFORE, *digests),
        Rows("steps", columns, 1),
    ]


def layer_columns(
    attempt: int, step: int, part: LayerRows, order: NDArray[np.int32]
) -> dict[str, Any]:
    """Columns of the table "layers"."""
    columns = part.measures.T
    return {
        "attempt": attempt,
        "step": step,
        "layer": order[part.rows],
        "norm": columns[0],
        "max_abs": columns[1],
        "mean_abs": columns[2],
        "nonfinite": columns[3].astype(np.int64),
        "zeros": columns[4].astype(np.int64),
        "scope": part.scope,
        "copies": part.copies,
    }


def _rows_after(frame: Sequence[Any]) -> list[Rows]:
    _, attempt, step, shadow, *digests = frame
    rows = _digest_rows(attempt, step, AFTER, *digests)
    if shadow is not None:
        names = ("loss", "repeat_loss", "batch_hash", "seconds")
        columns = {"attempt": attempt, "step": step, **dict(zip(names, shadow, strict=True))}
        rows.append(Rows("shadow", columns, 1))
    return rows


def _digest_rows(
    attempt: int, step: int, phase: str, kinds: list[str], layers: list[int], content: bytes
) -> list[Rows]:
    if not kinds:
        return []
    values = np.frombuffer(content, dtype=np.int64).reshape(-1, 3)
    columns = {
        "attempt": attempt, "step": step, "phase": phase, "kind": kinds,
        "layer": np.array(layers, dtype=np.int32),
        "h": values[:, 0], "s1": values[:, 1], "s2": values[:, 2],
    }  # fmt: skip
    return [Rows("digests", columns, len(kinds))]


def _sums(part: Sequence[Any], layers: int) -> Sums:
    rows, content, reduced = part
    places = np.arange(layers) if rows is None else np.array(rows, dtype=np.intp)
    return Sums(places, np.frombuffer(content, dtype=np.float64).reshape(-1, 5), reduced)
