"""The shards of a DCP directory against its metadata: what the file system shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sdc_guard.archive.dcp.dcp_metadata import FILE, DcpMetadata
from sdc_guard.archive.foreign_file import ENOUGH, lfs_pointer
from sdc_guard.archive.regular_file import open_regular
from sdc_guard.shown import shown

from ..locations import is_local

# file systems stamp to between 1 ns and 2 s (FAT); the clocks of a job's machines may also differ
GRANULARITY = 2.0
_LISTED = 8
_POINTER = 1024  # bytes: a Git LFS pointer is smaller, by its specification


@dataclass(frozen=True)
class Shard:
    """A shard that the metadata names.

    Attributes:
        name: relative to the directory.
        needed: bytes it must have.
        size: bytes it has; None if it is missing or no file.
        modified: time of its last change, in seconds; 0 if it is missing.
        items: names of what it holds something of, in the metadata's order.
    """

    name: str
    needed: int
    size: int | None
    modified: float
    items: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether all bytes that the metadata names can be there."""
        return self.size is not None and self.size >= self.needed


def shards(folder: Path, metadata: DcpMetadata) -> list[Shard]:
    """Every shard that the metadata names, by name."""
    needed: dict[str, int] = {}
    items: dict[str, dict[str, None]] = {}
    for name, place in metadata.places():
        needed[place.file] = max(needed.get(place.file, 0), place.offset + place.length)
        items.setdefault(place.file, {})[name] = None
    found = []
    for file in sorted(needed):
        size, modified = _look(folder / file)
        found.append(Shard(file, needed[file], size, modified, tuple(items[file])))
    return found


def lost(folder: Path, shard: Shard, metadata: DcpMetadata) -> str:
    """Why a shard that is not whole cannot be read, and what it held."""
    if shard.size is None:
        state = "is missing"
    elif pointer := _pointer(folder / shard.name, shard.size):
        state = f"is a {pointer}"
    else:
        kind = "truncated" if shard.size else "empty"
        state = f"is {kind} ({shard.size:,} of {shard.needed:,} bytes)"
    tensors = [name for name in shard.items if name in metadata.tensors]
    held = f"{len(tensors):,} of {len(metadata.tensors):,} tensors"
    return f"shard {shard.name} {state}; it held {held}: {listed(tensors)}"


def too_new(folder: Path, found: Iterable[Shard]) -> str:
    """The shards that were written after the metadata, which a save writes last; "" if none.

    Behind a URL times are those of the copying there, in any order: nothing is said by them.
    """
    if not is_local(folder):
        return ""
    _, written = _look(folder / FILE)
    newer = [shard.name for shard in found if shard.modified > written + GRANULARITY]
    if not newer:
        return ""
    return (
        f"{listed(newer)} newer than {FILE}: saved again without an end, so that metadata and "
        "shards may be of two saves (or copied without the times)"
    )


def left_over(folder: Path, found: Iterable[Shard]) -> list[str]:
    """Notes on what lies in the directory and is of no item."""
    found = list(found)
    named = {shard.name for shard in found}
    others = [file.name for file in folder.glob("*.distcp") if file.name not in named]
    notes = [f"{listed(sorted(others))}: no item of {FILE} is there"] if others else []
    for shard in found:
        if shard.size is not None and shard.size > shard.needed:
            extra = shard.size - shard.needed
            notes.append(f"{extra:,} bytes after the last item of {shard.name}")
    return notes


def listed(names: Iterable[str]) -> str:
    """Names in a line, the first of many."""
    names = list(names)
    text = ", ".join(shown(name[:200]) for name in names[:_LISTED])
    return f"{text} and {len(names) - _LISTED:,} more" if len(names) > _LISTED else text


def _look(path: Path) -> tuple[int | None, float]:
    try:
        if not path.is_file():
            return None, 0.0
        status = path.stat()
    except OSError:
        return None, 0.0
    return status.st_size, status.st_mtime


def _pointer(path: Path, size: int) -> str | None:
    if not 0 < size <= _POINTER:
        return None
    try:
        with open_regular(path) as file:
            return lfs_pointer(file.read(ENOUGH))
    except OSError:
        return None
