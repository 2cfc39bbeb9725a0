"""Tensors with the digests of another step than the one that a checkpoint says.

A save that copies while the training goes on keeps some or all tensors of the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from sdc_guard.archive.manifest import Manifest
from sdc_guard.digest import digest_tensor
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import UNKNOWN_ATTEMPT, Checkpoint
from ..content import Content

_TRACED: Final = """
    SELECT step, kind, name, h, s1, s2
    FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND step BETWEEN $low AND $high AND rank = 0
        AND ($attempt = 0 OR attempt = $attempt)
"""
_Key = tuple[str, str]  # kind and layer
_SAID: Final = 0  # steps from the one that the checkpoint says


def race(one: Checkpoint, content: Content, trace: TraceReader) -> Iterator[str]:
    """A line where tensors are of a neighbouring step.

    Raises:
        CheckpointUnreadable: a tensor cannot be read.
    """
    step, places = _places(one, content)
    traced = _traced(trace, one, step)
    offsets: Counter[int] = Counter()
    first: dict[int, str] = {}
    for name, key in places.items():
        if key not in traced or name not in content.tensors:
            continue
        sums = tuple(digest_tensor(content.tensors[name].read()))
        found = [offset for offset, digest in traced[key].items() if digest == sums]
        if found and _SAID not in found:  # a frozen layer is the same at each step
            offsets[found[0]] += 1
            first.setdefault(found[0], name)
        elif found:
            offsets[_SAID] += 1
    for offset, count in offsets.items():
        if offset != _SAID:
            whole = sum(offsets.values())
            what = "its tensors hold" if count == whole else f"{count} of {whole} tensors hold"
            text = f"{what} step {step + offset}, and it says step {step} ({first[offset]} first)"
            yield f"{text}: saved while the training went on"


def _places(one: Checkpoint, content: Content) -> tuple[int, Mapping[str, _Key]]:
    """The trace's step, and which recorded tensor each stored one is."""
    try:
        manifest = Manifest.read(one.path)
    except CheckpointUnreadable:
        return one.step, {name: ("param", name.removeprefix("model.")) for name in content.tensors}
    named = {
        content.aliases.get(name, name): (entry.kind, entry.layer)
        for name, entry in manifest.tensors.items()
        if entry.kind is not None and entry.layer is not None
    }
    return manifest.trace_step, named


def _traced(
    trace: TraceReader, one: Checkpoint, step: int
) -> dict[_Key, dict[int, tuple[int, ...]]]:
    """The digests around a step by tensor, and by the distance from it."""
    attempt = 0 if one.attempt == UNKNOWN_ATTEMPT else one.attempt
    rows = trace.rows(_TRACED, {"low": step - 1, "high": step + 1, "attempt": attempt})
    found: dict[_Key, dict[int, tuple[int, ...]]] = {}
    for at, kind, name, *sums in rows:
        found.setdefault((kind, name), {})[at - step] = tuple(value % 2**64 for value in sums)
    return found
