"""Tensors with the digests of another step than the one that a checkpoint says.

A save that copies while the training goes on keeps some or all tensors of the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sdc_guard.archive.manifest import SHARDED, Manifest
from sdc_guard.archive.sealing.as_manifest import as_manifest
from sdc_guard.archive.sealing.seal_file import seal_at
from sdc_guard.archive.sharded.opened import OpenedFolder
from sdc_guard.digest import Digest, digest_tensor
from sdc_guard.errors import CheckpointMismatch, CheckpointUnreadable
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from ..content import Content

_TRACED: Final = """
    SELECT rank, step, kind, name, h, s1, s2
    FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND step BETWEEN $low AND $high
        AND ($attempt = 0 OR attempt = $attempt)
"""
_Key = tuple[int, str, str]  # rank, kind and layer
_SAID: Final = 0  # steps from the one that the checkpoint says


@dataclass(frozen=True)
class _Held:
    """A tensor in a checkpoint, or a rank's piece of one, that the trace has digests of."""

    name: str
    key: _Key
    digest: Digest


def race(one: Checkpoint, content: Content, trace: TraceReader) -> Iterator[str]:
    """A line where tensors are of a neighbouring step; each rank's by that rank's trace.

    Raises:
        CheckpointUnreadable: a tensor cannot be read.
    """
    step, places = _places(one, content)
    offsets: dict[str, int] = {}
    traced = _traced(trace, one, step)
    for held in places:
        found = [at for at, digest in traced.get(held.key, {}).items() if digest == held.digest]
        if _SAID in found:  # a frozen layer is the same at each step
            offsets.setdefault(held.name, _SAID)
        elif found:
            offsets[held.name] = found[0]
    for offset, count in Counter(offsets.values()).items():
        if offset != _SAID:
            first = next(name for name, at in offsets.items() if at == offset)
            what = "its tensors hold" if count == len(offsets) else _some(count, len(offsets))
            text = f"{what} step {step + offset}, and it says step {step} ({first} first)"
            yield f"{text}: saved while the training went on"


def _some(count: int, whole: int) -> str:
    return f"{count} of {whole} tensors hold"


def _places(one: Checkpoint, content: Content) -> tuple[int, Iterator[_Held]]:
    """The trace's step, and what is stored, with the recorded tensor that each is."""
    try:
        manifest = Manifest.read(one.path)
    except CheckpointUnreadable:
        return _unlisted(one, content)
    if manifest.format == SHARDED:
        return manifest.trace_step, _of_ranks(one, manifest)
    named = {
        content.aliases.get(name, name): (entry.kind, entry.layer)
        for name, entry in manifest.tensors.items()
        if entry.kind is not None and entry.layer is not None
    }
    return manifest.trace_step, _of_one(content, named)


def _unlisted(one: Checkpoint, content: Content) -> tuple[int, Iterator[_Held]]:
    """Of what no manifest lists: by a guard's seal, and by their names what it does not know."""
    named = {name: ("param", name.removeprefix("model.")) for name in content.tensors}
    step = one.step
    try:
        seal = seal_at(one.path)
    except CheckpointUnreadable:
        seal = None
    if seal is not None and (manifest := as_manifest(seal)) is not None:
        step = manifest.trace_step
        for name, entry in manifest.tensors.items():
            if entry.kind is not None and entry.layer is not None:
                named[name] = entry.kind, entry.layer
    return step, _of_one(content, named)


def _of_one(content: Content, named: dict[str, tuple[str, str]]) -> Iterator[_Held]:
    for name, (kind, layer) in named.items():
        if name in content.tensors:
            yield _Held(name, (0, kind, layer), digest_tensor(content.tensors[name].read()))


def _of_ranks(one: Checkpoint, manifest: Manifest) -> Iterator[_Held]:
    """The pieces that each rank wrote; nothing where what says so is not what was written."""
    try:
        opened = OpenedFolder(one.path, manifest)
    except CheckpointMismatch:
        return
    for rank, part in enumerate(opened.by_rank):
        for written in part:
            entry = written.piece.entry
            if entry is not None and entry.kind is not None and entry.layer is not None:
                key = rank, entry.kind, entry.layer
                yield _Held(written.piece.name, key, opened.digest(written))


def _traced(trace: TraceReader, one: Checkpoint, step: int) -> dict[_Key, dict[int, Digest]]:
    """The digests around a step by rank and tensor, and by the distance from it."""
    attempt = 0 if one.attempt == UNKNOWN_ATTEMPT else one.attempt
    rows = trace.rows(_TRACED, {"low": step - 1, "high": step + 1, "attempt": attempt})
    found: dict[_Key, dict[int, Digest]] = {}
    for rank, at, kind, name, *sums in rows:
        digest = Digest(*(value % 2**64 for value in sums))
        found.setdefault((rank, kind, name), {})[at - step] = digest
    return found
