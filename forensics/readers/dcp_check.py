"""Reading every item of a DCP directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sdc_guard.archive.dcp.dcp_metadata import FILE, NEXT_STEP, Chunk, DcpMetadata, Place
from sdc_guard.archive.dcp.dcp_tensors import check_foreign, chunk_stub, fault, source
from sdc_guard.archive.dcp.dcp_values import COMMON, held_by
from sdc_guard.archive.dcp.saved_zip import DamagedItem, SavedZip, Source, opened
from sdc_guard.errors import CheckpointUnreadable

from ..content import Integrity
from .dcp_shards import shards

NO_CHECKSUM: Final = "it has no checksum: that it names the right tensors is not proven"
_FEW_BYTES: Final = 8 * 2**20  # are summed faster without threads
_MOST_THREADS: Final = 4  # each holds a few MB


@dataclass(frozen=True)
class _Item:
    """An item, or a tensor's part of one, and where it is."""

    name: str
    place: Place
    chunk: Chunk | None = None


@dataclass(frozen=True)
class _Seen:
    """What reading an item showed.

    Attributes:
        item: its name.
        tensors: names of those in it.
        damage: what is wrong with it; "" if nothing.
        summed: whether each of its records has a checksum.
        bytes: that were read; 0 if it could not be.
    """

    item: str
    tensors: tuple[str, ...]
    damage: str = ""
    summed: bool = True
    bytes: int = 0


def check_items(folder: Path, metadata: DcpMetadata) -> Integrity:
    """What reading every item shows.

    Raises:
        CheckpointUnreadable: not one item can be read.
    """
    items = sorted(_items(metadata), key=lambda item: (item.place.file, item.place.offset))
    seen = list(_all_seen(folder, metadata, items))
    if items and not any(one.bytes for one in seen):
        raise CheckpointUnreadable(
            "unreadable: none of its items can be read", where=str(folder), next_step=NEXT_STEP
        )
    if (folder / COMMON).is_file():
        whole = Source(folder / COMMON, 0, (folder / COMMON).stat().st_size)
        seen.append(_read(metadata, whole, COMMON, None))
    damaged = _told_by_metadata(folder, metadata)
    for one in seen:
        if one.damage:
            # the first reason counts: it is the one nearest to the cause
            damaged = dict.fromkeys((one.item, *one.tensors), one.damage) | damaged
    foreign = {name for name, item in metadata.tensors.items() if item.foreign}
    summed = {name: True for one in seen for name in one.tensors}
    summed |= {name: False for one in seen if not one.summed for name in one.tensors}
    sound = [name for name in summed if name not in damaged and name not in foreign]
    return Integrity(
        damaged,
        tuple(name for name in sound if summed[name]),
        (*(name for name in sound if not summed[name]), *(() if FILE in damaged else (FILE,))),
        metadata.bytes + sum(one.bytes for one in seen),
        {FILE: NO_CHECKSUM},
        tuple(sorted(foreign - damaged.keys())),
    )


def _told_by_metadata(folder: Path, metadata: DcpMetadata) -> dict[str, str]:
    """What is wrong by the metadata and the shards' sizes alone."""
    damaged = {}
    if metadata.contradiction or (overlap := _overlap(metadata)):
        damaged[FILE] = metadata.contradiction or overlap
    for shard in shards(folder, metadata):
        if not shard.whole:
            size = f"{shard.size or 0:,} of {shard.needed:,} bytes"
            damaged[shard.name] = "missing" if shard.size is None else size
    for name, item in metadata.tensors.items():
        if wrong := fault(item):
            damaged[name] = wrong
    for name, place in metadata.others.items():
        if place is None:
            damaged[name] = "the metadata does not say where it is"
    return damaged


def _overlap(metadata: DcpMetadata) -> str:
    """Items that it says lie on the same bytes; "" if none do. The writer puts them in a row."""
    last: tuple[str, Place] | None = None
    for name, place in sorted(metadata.places(), key=lambda one: (one[1].file, one[1].offset)):
        before = None if last is None or last[1] == place else last[1]
        if last and before and before.file == place.file and place.offset < _end(before):
            return f"it has {last[0]} and {name} on the same bytes of {place.file}"
        last = name, place
    return ""


def _end(place: Place) -> int:
    return place.offset + place.length


def _items(metadata: DcpMetadata) -> Iterator[_Item]:
    for name, item in metadata.tensors.items():
        for chunk in item.chunks:
            if chunk.place is not None:
                yield _Item(name, chunk.place, chunk)
    for name, place in metadata.others.items():
        if place is not None:
            yield _Item(name, place)


def _all_seen(folder: Path, metadata: DcpMetadata, items: list[_Item]) -> Iterable[_Seen]:
    """Each item in the order in which they lie in the shards; large ones side by side."""
    look = partial(_seen, folder, metadata)
    if sum(item.place.length for item in items) < _FEW_BYTES:
        return map(look, items)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(look, items))


def _seen(folder: Path, metadata: DcpMetadata, item: _Item) -> _Seen:
    try:
        place = source(folder, item.place)
    except DamagedItem as error:
        return _Seen(item.name, (), str(error))
    return _read(metadata, place, item.name, item.chunk)


def _read(metadata: DcpMetadata, item: Source, name: str, chunk: Chunk | None) -> _Seen:
    where = "" if chunk is None or not any(chunk.offsets) else f" of chunk {list(chunk.offsets)}"
    tensors: tuple[str, ...] = (name,) if chunk is not None else ()
    try:
        with opened(item) as saved:
            damage, summed = _checksums(saved)
            if chunk is not None and metadata.tensors[name].foreign:
                check_foreign(saved)
            elif chunk is not None:
                chunk_stub(saved, metadata.tensors[name], chunk)
        if chunk is None:
            tensors = tuple(held_by(item, "" if name == COMMON else name).tensors)
    except DamagedItem as error:
        return _Seen(name, tensors, f"{error}{where} ({item.file.name})")
    return _Seen(name, tensors, damage and damage + where, summed, item.length)


def _checksums(saved: SavedZip) -> tuple[str, bool]:
    """Which record does not fit its checksum, and whether each has one."""
    checked = list(saved.checked())
    wrong = [record for record, sound in checked if sound is False]
    damage = f"CRC mismatch in record {wrong[0]}" if wrong else ""
    return damage, all(sound is not None for _, sound in checked)
