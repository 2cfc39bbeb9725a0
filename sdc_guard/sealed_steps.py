"""What a trace says of the state that a step left, and which step left a state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .archive.sealing.judged import PARAMETER, Key, Left
from .detect.counters import KIND as COUNTER
from .digest import Digest
from .sealed_shards import summed
from .store.run_file import Layer
from .store.writer import Writer

_AROUND: Final = 50  # steps in which another one is looked for that left a state
_PATIENCE: Final = 1.5  # seconds in which steps after this one may still come
_TRIES: Final = 3
_LEFT: Final = """
    SELECT kind, layer, h, s1, s2 FROM every.digests
    WHERE phase = 'after' AND step = $step AND rank = 0
        AND attempt = (SELECT max(attempt) FROM every.digests
            WHERE step = $step AND phase = 'after' AND attempt <= $attempt)
"""
_WHOSE: Final = """
    SELECT step, rank, kind, layer, h, s1, s2 FROM every.digests
    WHERE phase = 'after' AND step BETWEEN $first AND $last
"""


def left_at(
    run: Path, step: int, attempt: int, parts: frozenset[str] = frozenset()
) -> tuple[dict[Key, Left], list[str]]:
    """What a step left, as far as the trace has it; and that it has not all of it.

    Args:
        run: the run's folder.
        step: it.
        attempt: that ran it, or began after it.
        parts: names of the layers of which rank 0 holds a shard: its digest is none of the whole,
            and left out.

    Raises:
        SdcGuardError: the run cannot be read.
    """
    from .store.reader import RunReader

    with RunReader(run) as reader:
        layers = {layer.id: layer for layer in reader.run_file.layers}
        rows = reader.rows(_LEFT, {"step": step, "attempt": attempt})
    left = {
        (kind, layers[number].name): _left(kind, layers[number], Digest(*_unsigned(sums)))
        for kind, number, *sums in rows
        if number in layers
    }
    there, whole = sum(kind == PARAMETER for kind, _ in left), len(layers)
    kept = {key: one for key, one in left.items() if key[1] not in parts}
    unproven = []
    if 0 < there < whole:
        unproven.append(f"the trace has digests of {there} of {whole} parameters after step {step}")
    return kept, unproven


def step_that_left(
    run: Path,
    digests: Mapping[Key, Digest],
    near: int,
    writer: Writer,
    *,
    patient: bool,
    parts: frozenset[str] = frozenset(),
) -> int | None:
    """The step near another one that left these tensors, as far as it was recorded; or None.

    Args:
        run: the run's folder.
        digests: of tensors; the trace has none of step counters.
        near: steps around this one are looked at.
        writer: of the trace.
        patient: whether to look again for a moment, as steps may be on their way into the trace.
        parts: names of the layers that the ranks share out.

    Raises:
        SdcGuardError: the run cannot be read.
    """
    traced = {key: tuple(digest) for key, digest in digests.items() if key[0] != COUNTER}
    for left in reversed(range(_TRIES if patient else 1)):
        writer.flush(_PATIENCE)
        if (found := _look(run, traced, near, parts)) is not None or not left:
            return found
        time.sleep(_PATIENCE / _TRIES)
    return None


def _look(
    run: Path, traced: Mapping[Key, tuple[int, ...]], near: int, parts: frozenset[str]
) -> int | None:
    from .store.reader import RunReader

    span = {"first": max(0, near - _AROUND), "last": near + _AROUND}
    with RunReader(run) as reader:
        names = reader.run_file.layer_names()
        rows = reader.rows(_WHOSE, span)
    of_step: dict[int, list[tuple[int, str, str, Digest]]] = {}
    for step, rank, kind, number, *sums in rows:
        if (kind, name := names.get(number, "")) in traced and (rank == 0 or name in parts):
            row = rank, kind, name, Digest(*_unsigned(sums))
            of_step.setdefault(step, []).append(row)
    fits: dict[int, bool] = {}
    for step, found in of_step.items():
        whole = [((kind, name), digest) for _, kind, name, digest in found if name not in parts]
        left = [*whole, *summed(found, parts).items()]
        fits[step] = all(traced[key] == tuple(digest) for key, digest in left)
    fitting = [step for step, all_fit in fits.items() if all_fit]
    return min(fitting, key=lambda step: (abs(step - near), step), default=None)


def _unsigned(sums: list[int]) -> list[int]:
    return [value % 2**64 for value in sums]


def _left(kind: str, layer: Layer, digest: Digest) -> Left:
    dtype = layer.dtype.removeprefix("torch.") if kind == "param" else ""
    return Left(digest, tuple(layer.shape), dtype)
