"""Reading every item of a DCP directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sdc_guard.errors import CheckpointUnreadable

from ..content import Integrity
from .dcp_metadata import NEXT_STEP, Chunk, DcpMetadata, Place
from .dcp_shards import shards
from .dcp_tensors import chunk_stub, fault, source
from .dcp_values import COMMON, held_by
from .saved_zip import DamagedItem, SavedZip, Source, opened


@dataclass
class _Findings:
    damaged: dict[str, str] = field(default_factory=dict)
    intact: dict[str, None] = field(default_factory=dict)
    unchecked: dict[str, None] = field(default_factory=dict)
    bytes: int = 0

    def blame(self, name: str, reason: str) -> None:
        """The first reason counts: it is the one nearest to the cause."""
        self.damaged.setdefault(name, reason)


def check_items(folder: Path, metadata: DcpMetadata) -> Integrity:
    """What reading every item shows.

    Raises:
        CheckpointUnreadable: not one item can be read.
    """
    findings = _Findings(bytes=metadata.bytes)
    for shard in shards(folder, metadata):
        if shard.size is None:
            findings.blame(shard.name, "missing")
        elif not shard.whole:
            findings.blame(shard.name, f"{shard.size:,} of {shard.needed:,} bytes")
    for name, item in metadata.tensors.items():
        if wrong := fault(item):
            findings.blame(name, wrong)
    for name, place in metadata.others.items():
        if place is None:
            findings.blame(name, "the metadata does not say where it is")
    items = sorted(_items(metadata), key=lambda item: (item[1].file, item[1].offset))
    readable = 0
    for name, place, chunk in items:
        readable += _check(findings, folder, metadata, name, place, chunk)
    if items and not readable:
        raise CheckpointUnreadable(
            "unreadable: none of its items can be read", where=str(folder), next_step=NEXT_STEP
        )
    if (folder / COMMON).is_file():
        size = (folder / COMMON).stat().st_size
        _read(findings, Source(folder / COMMON, 0, size), COMMON, None, metadata)
    intact = [name for name in findings.intact if name not in findings.damaged]
    unchecked = tuple(name for name in findings.unchecked if name not in findings.damaged)
    sound = tuple(name for name in intact if name not in findings.unchecked)
    return Integrity(findings.damaged, sound, unchecked, findings.bytes)


def _items(metadata: DcpMetadata) -> Iterator[tuple[str, Place, Chunk | None]]:
    for name, item in metadata.tensors.items():
        for chunk in item.chunks:
            if chunk.place is not None:
                yield name, chunk.place, chunk
    for name, place in metadata.others.items():
        if place is not None:
            yield name, place, None


def _check(
    findings: _Findings,
    folder: Path,
    metadata: DcpMetadata,
    name: str,
    place: Place,
    chunk: Chunk | None,
) -> bool:
    """Check an item; whether it could be read."""
    try:
        item = source(folder, place)
    except DamagedItem as error:
        findings.blame(name, str(error))
        return False
    return _read(findings, item, name, chunk, metadata)


def _read(
    findings: _Findings,
    item: Source,
    name: str,
    chunk: Chunk | None,
    metadata: DcpMetadata,
) -> bool:
    where = "" if chunk is None or not any(chunk.offsets) else f" of chunk {list(chunk.offsets)}"
    try:
        with opened(item) as saved:
            findings.bytes += item.length
            checksums = _checksums(findings, saved, name, where)
            if chunk is not None:
                chunk_stub(saved, metadata.tensors[name], chunk)
        names = [name] if chunk else list(held_by(item, "" if name == COMMON else name).tensors)
    except DamagedItem as error:
        findings.blame(name, f"{error}{where} ({item.file.name})")
        return False
    for tensor in names:
        target = findings.intact if checksums else findings.unchecked
        target[tensor] = None
        if name in findings.damaged:
            findings.blame(tensor, findings.damaged[name])
    return True


def _checksums(findings: _Findings, saved: SavedZip, name: str, where: str) -> bool:
    """Blame the item for records that do not fit theirs; whether each record has one."""
    complete = True
    for record, sound in saved.checked():
        if sound is False:
            findings.blame(name, f"CRC mismatch in record {record}{where}")
        complete &= sound is not None
    return complete
