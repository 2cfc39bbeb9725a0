"""Which files of a folder are the shards of one checkpoint, by its index or by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Final

from sdc_guard.shown import shown

from .listing import is_file, names_in
from .safetensors_tensors import step
from .small_json import DamagedJson, read_object

_INDEX: Final = re.compile(r"(.+)\.safetensors\.index(?:\.[^.]+)?\.json")
# what DCP writes in the form of Hugging Face before it is put together is another reader's
_SHARD: Final = re.compile(r"(?!shard-\d+-)(.+)-(\d{5,})-of-(\d{5,})\.safetensors")
_MOST: Final = 100_000  # shards


@dataclass(frozen=True)
class ShardSet:
    """The shards of one checkpoint.

    Attributes:
        folder: where they lie.
        stem: that their names begin with.
        files: the names of all that should be there, sorted.
        index: the index's name; None without one.
        placed: tensor to file, by the index.
        total: bytes of all tensors, by the index; None if it does not say.
        step: that the index says; None if it does not.
        reasons: what is wrong with the index.
    """

    folder: Path
    stem: str
    files: tuple[str, ...]
    index: str | None = None
    placed: Mapping[str, str] = field(default_factory=dict)
    total: int | None = None
    step: int | None = None
    reasons: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Files that are not there."""
        return tuple(name for name in self.files if not is_file(self.folder / name))


def sets_in(folder: Path) -> list[ShardSet]:
    """The sets of shards that lie directly in a folder, those with an index first."""
    names = names_in(folder)
    by_name = _by_name(folder, names)
    found = [_indexed(folder, name, by_name) for name in sorted(names) if _INDEX.fullmatch(name)]
    taken = {file for one in found for file in one.files}
    return [*found, *(one for one in by_name if not taken & set(one.files))]


def _by_name(folder: Path, names: Iterable[str]) -> list[ShardSet]:
    found: dict[tuple[str, str], int] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match and 0 < int(match[3]) <= _MOST:
            found[match[1], match[3]] = len(match[2])
    return [
        ShardSet(
            folder,
            stem,
            tuple(
                f"{stem}-{number:0{width}}-of-{count}.safetensors"
                for number in range(1, int(count) + 1)
            ),
        )
        for (stem, count), width in sorted(found.items())
    ]


def _indexed(folder: Path, name: str, by_name: list[ShardSet]) -> ShardSet:
    match = _INDEX.fullmatch(name)
    stem = match[1] if match else name
    try:
        document = read_object(folder / name)
        placed = _placed(document)
        saved = document.get("metadata")
        metadata = saved if isinstance(saved, dict) else {}
        total = metadata.get("total_size")
        return ShardSet(
            folder, stem, tuple(sorted(set(placed.values()))), name, placed,
            total if type(total) is int and total > 0 else None, step(metadata),
        )  # fmt: skip
    except DamagedJson as damage:
        reasons = (f"{name}: {damage}",)
    likely = [one for one in by_name if one.stem.split(".")[0] == stem] or by_name
    if len(likely) == 1:
        return replace(likely[0], index=name, reasons=reasons)
    return ShardSet(folder, stem, (), name, reasons=reasons)


def _placed(document: dict[str, Any]) -> dict[str, str]:
    """Tensor to file.

    Raises:
        DamagedJson: it gives no files, or files elsewhere.
    """
    placed = document.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise DamagedJson("no index of shards: weight_map missing")
    for file in set(map(str, placed.values())):
        if file in (".", "..") or PurePath(file).name != file or "\\" in file or "\0" in file:
            raise DamagedJson(f"names a file outside of its folder, {shown(file[:80])}")
    if not all(isinstance(file, str) for file in placed.values()):
        raise DamagedJson("weight_map does not give files by name")
    return placed
