"""Whether the shards of one checkpoint are all there, and of one save: by index and headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sdc_guard.archive.safetensors_header import Header, read_header
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.shown import shown

from .findings import Findings
from .safetensors_file import told
from .safetensors_index import ShardSet
from .safetensors_tensors import step

_MOST: Final = 3  # names in a line


def describe_set(shards: ShardSet) -> Findings:
    """What the index and the headers say, and where they disagree; never raises for that."""
    headers, unreadable = headers_of(shards)
    if not shards.files:
        return Findings((*shards.reasons, "no shards there"), readable=False)
    reasons = [*shards.reasons, *unreadable, *_cut(headers)]
    if shards.missing:
        present = len(shards.files) - len(shards.missing)
        total = len(shards.files)
        reasons.append(f"{present} of {total} shards present; missing {_few(shards.missing)}")
    lost = _lost(shards, headers)
    if not any(header.entries for header in headers.values()) and not reasons:
        lost = ["no tensors in file"]
    readable = not (unreadable or shards.missing or lost or any(_cut(headers)))
    reasons += [*lost, *_doubted(shards, headers)]
    notes = [f"{name}: {note}" for name, header in headers.items() for note in told(header)]
    if shards.index is None:
        notes.append("no index of shards: taken by their names")
    return Findings(tuple(reasons), tuple(notes), readable, step_of(shards, headers))


def headers_of(shards: ShardSet) -> tuple[dict[str, Header], list[str]]:
    """The headers by file, and what is wrong with the files that have none."""
    headers, unreadable = {}, []
    missing = set(shards.missing)
    for name in shards.files:
        if name in missing:
            continue
        try:
            headers[name] = read_header(shards.folder / name)
        except CheckpointUnreadable as error:
            unreadable.append(f"{name}: {error.what}")
    return headers, unreadable


def _cut(headers: Mapping[str, Header]) -> list[str]:
    return [
        f"{name}: {header.trouble}"
        for name, header in headers.items()
        if header.entries and header.trouble
    ]


def _lost(shards: ShardSet, headers: Mapping[str, Header]) -> list[str]:
    """Tensors that the index places in a shard that does not have them."""
    held = {name: {entry.name for entry in header.entries} for name, header in headers.items()}
    lost: dict[str, list[str]] = {}
    for tensor, file in shards.placed.items():
        if file in held and tensor not in held[file]:
            lost.setdefault(file, []).append(tensor)
    return [f"listed in the index and not in {file}: {_few(names)}" for file, names in lost.items()]


def _doubted(shards: ShardSet, headers: Mapping[str, Header]) -> list[str]:
    """What speaks for a shard of another save."""
    places: dict[str, list[str]] = {}
    for file, header in headers.items():
        for entry in header.entries:
            places.setdefault(entry.name, []).append(file)
    reasons = []
    twice = {tensor: files for tensor, files in places.items() if len(files) > 1}
    if twice:
        files = dict.fromkeys(file for files in twice.values() for file in files)
        reasons.append(f"in several shards ({_few(files)}): {_few(twice)}")
    unlisted = [tensor for tensor in places if shards.placed and tensor not in shards.placed]
    if unlisted:
        reasons.append(f"not listed in the index: {_few(unlisted)}; a shard of another save?")
    if shards.total is not None and len(headers) == len(shards.files):
        held = sum(header.needed for header in headers.values())
        if held != shards.total:
            reasons.append(
                f"the shards' tensors hold {held:,} bytes, the index says {shards.total:,}: "
                "a shard of another save?"
            )
    if len(steps := _steps(shards, headers)) > 1:
        reasons.append(f"shards of different steps: {', '.join(map(str, sorted(steps)))}")
    return reasons


def _steps(shards: ShardSet, headers: Mapping[str, Header]) -> set[int]:
    found = [shards.step, *(step(header.metadata) for header in headers.values())]
    return {one for one in found if one is not None}


def step_of(shards: ShardSet, headers: Mapping[str, Header]) -> int | None:
    """The step that index and shards say; None if they do not, or not the same."""
    steps = _steps(shards, headers)
    return steps.pop() if len(steps) == 1 else None


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(shown(name[:80]) for name in listed[:_MOST])
    return f"{text} and {len(listed) - _MOST:,} more" if len(listed) > _MOST else text
