"""What a step left of tensors of which each rank holds a shard, for rank 0 to seal.

The digest of a tensor is the sum of its shards' digests. Each rank's trace has those of its own, in
the folder of the run that all of them write to. A rank that is told to seal says in an event how
many digests its trace has of shards; rank 0 sums up when it finds as many.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from .archive.sealing.judged import Key
from .detect.counters import KIND as COUNTER
from .digest import Digest
from .store.writer import Writer

EVENT: Final = "shards to be sealed"
PATIENCE: Final = 30.0  # seconds; another rank comes to the same line of the script, or never
PATIENCE_IN_STEP: Final = 10.0  # where the training itself waits for the seal
_PAUSE: Final = (0.1, 1.0)  # seconds between two looks into the trace, at first and in the end
_NOT_COUNTED: Final = (COUNTER, "buffer")
_SHARDS: Final = """
    SELECT rank, kind, layer, h, s1, s2 FROM every.digests
    WHERE phase = 'after' AND step = $step AND attempt = (SELECT max(attempt) FROM every.digests
        WHERE step = $step AND phase = 'after' AND attempt <= $attempt)
"""
_TOLD: Final = """
    SELECT rank, detail FROM every.events
    WHERE kind = $kind AND step = $step AND attempt <= $attempt ORDER BY attempt
"""


@dataclass(frozen=True)
class Shards:
    """The tensors of which rank 0 holds a shard.

    Attributes:
        names: of the layers.
        parts: how many tensors of them this rank holds a shard of: parameters and moments.
        keys: how many tensors it holds in all, or shards of them. One may be whole on one rank,
            and the others' shards of it are empty.
        ranks: that hold the others, itself included; () where that is not known.
    """

    names: frozenset[str] = frozenset()
    parts: int = 0
    keys: int = 0
    ranks: tuple[int, ...] = ()


def shards_of(
    numbers: Mapping[int, str], held: Iterable[tuple[str, int]], parameters: Iterable[Any]
) -> Shards:
    """What this rank holds shards of.

    Args:
        numbers: number and name of the layers of which it holds a shard.
        held: keys of the state that it holds.
        parameters: of the model; a distributed one knows the ranks of its mesh.
    """
    counted = [number for kind, number in held if kind not in _NOT_COUNTED]
    parts = sum(number in numbers for number in counted)
    meshes = [one.device_mesh.mesh for one in parameters if hasattr(one, "device_mesh")]
    ranks = {int(rank) for mesh in meshes for rank in torch.as_tensor(mesh).flatten().tolist()}
    return Shards(frozenset(numbers.values()), parts, len(counted), tuple(sorted(ranks)))


def in_detail(shards: Shards) -> str:
    """What another rank says of its shards in an event."""
    return json.dumps({"digests": shards.keys})


def summed(
    rows: Iterable[tuple[int, str, str, Digest]], names: frozenset[str]
) -> dict[Key, Digest]:
    """The digests of whole tensors: (rank, kind, layer, digest) of shards, each shard once.

    Replicas of a shard lie at the same place in the whole and have the same digest. Two shards at
    different places have not, even of equal content: H depends on the place.
    """
    found: dict[Key, set[Digest]] = {}
    for _, kind, layer, digest in rows:
        if layer in names and kind != COUNTER:
            found.setdefault((kind, layer), set()).add(digest)
    return {
        key: Digest(*(sum(column) % 2**64 for column in zip(*parts, strict=True)))
        for key, parts in found.items()
    }


def whole_digests(
    run: Path, step: int, attempt: int, shards: Shards, writer: Writer, patience: float
) -> tuple[dict[Key, Digest], str]:
    """The digests of the whole tensors after a step; or {} and why there are none.

    Args:
        run: the run's folder.
        step, attempt: it.
        shards: of rank 0.
        writer: of the trace.
        patience: seconds to wait for the other ranks' digests at most.

    Raises:
        SdcGuardError: the run cannot be read.
    """
    if not shards.ranks:
        return {}, f"{shards.parts} tensors are one rank's shards, and not compared"
    end, pause = time.monotonic() + patience, _PAUSE[0]
    while True:
        writer.flush(1.0)
        rows, told = _look(run, step, attempt)
        lacking = _lacking(rows, {0: shards.keys} | told, shards)
        if not lacking:
            return summed(rows, shards.names), ""
        if time.monotonic() > end:
            what = "; ".join(lacking)
            return {}, f"{shards.parts} tensors are shards and not compared: {what}"
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE[1])


def _lacking(
    rows: Iterable[tuple[int, str, str, Digest]], told: Mapping[int, int], shards: Shards
) -> list[str]:
    """What is not in the trace yet, in words, by rank."""
    there: dict[int, set[Key]] = {}
    for rank, kind, layer, _ in rows:
        if kind not in _NOT_COUNTED:
            there.setdefault(rank, set()).add((kind, layer))
    silent = [rank for rank in shards.ranks if rank not in told]
    lacking = [f"ranks {', '.join(map(str, silent))} did not call guard.seal"] if silent else []
    for rank in shards.ranks:
        count = len(there.get(rank, ()))
        if rank in told and count < told[rank]:
            lacking.append(f"the trace has {count} of {told[rank]} digests of rank {rank}")
    return lacking


def _look(
    run: Path, step: int, attempt: int
) -> tuple[list[tuple[int, str, str, Digest]], dict[int, int]]:
    """The digests of all ranks, and how many each says that there are."""
    from .store.reader import RunReader

    with RunReader(run) as reader:
        names = reader.run_file.layer_names()
        about = {"step": step, "attempt": attempt}
        rows = reader.rows(_SHARDS, about)
        events = reader.rows(_TOLD, {**about, "kind": EVENT})
    digests = [
        (rank, kind, names.get(number, ""), Digest(*(value % 2**64 for value in sums)))
        for rank, kind, number, *sums in rows
    ]
    return digests, {rank: int(json.loads(detail)["digests"]) for rank, detail in events}
