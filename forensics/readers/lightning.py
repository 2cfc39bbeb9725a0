"""Checkpoints of Lightning's ModelCheckpoint: epoch=1-step=200.ckpt, last.ckpt.

They are files of `torch.save` with the number of optimizer steps under `global_step`. The same
step is often there twice, as last.ckpt or as another monitor's best: one of them is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.archive.torch_records import torch_records, torch_structure
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from .described import take_stock
from .reader import Reader
from .step_of import settle, step_in_name
from .torch_zip import check_file, describe, open_any

FORMAT: Final = "lightning"
_SUFFIX = ".ckpt"
_FOLDER = "unreadable: a folder of a sharding strategy; give its own path"


def find(path: Path) -> list[Checkpoint]:
    """The .ckpt files in a folder, without copies of the same step, or the one that `path` is.

    A trainer's own folder is looked through as well: it keeps them in `checkpoints`.
    """
    if path.is_file():
        return [describe(path, FORMAT)] if path.suffix == _SUFFIX else []
    if not path.is_dir():
        return []
    inner = path / "checkpoints"
    for folder in (path, inner):
        if folder.is_dir() and (found := _in_folder(folder)):
            return found
    return []


def _in_folder(folder: Path) -> list[Checkpoint]:
    named = [item for item in sorted(folder.iterdir()) if item.suffix == _SUFFIX]
    files = [describe(item, FORMAT) for item in named if item.is_file()]
    folders = [
        Checkpoint(
            settle(None, step_in_name(item.stem)).step,
            item,
            FORMAT,
            "untested",
            (_FOLDER,),
            readable=False,
        )
        for item in named
        if item.is_dir()
    ]
    return [*_without_copies(files), *folders]


def _without_copies(found: list[Checkpoint]) -> list[Checkpoint]:
    """One checkpoint of each step and content: the one whose name says its step, if any does."""
    kept: list[Checkpoint] = []
    for one in sorted(found, key=lambda item: ("step=" not in item.path.name, item.path.name)):
        place = next((at for at, other in enumerate(kept) if _is_copy(one, other)), None)
        if place is None:
            kept.append(one)
        else:
            note = f"{one.path.name} holds the same tensors"
            kept[place] = replace(kept[place], notes=(*kept[place].notes, note))
    return kept


def _is_copy(one: Checkpoint, other: Checkpoint) -> bool:
    if not (one.readable and other.readable and one.step == other.step):
        return False
    if one.path.samefile(other.path):  # a link
        return True
    prints = [_fingerprint(item.path) for item in (one, other)]
    return None not in prints and prints[0] == prints[1]


def _fingerprint(file: Path) -> dict[str, tuple[int, int]] | None:
    """Size and checksum of what each tensor lies in, by name; None where there are no checksums.

    Without the callbacks' own: they note where the best checkpoints are, and go on doing so.
    """
    try:
        records = torch_records(file)
        structure = torch_structure(records)
        found = take_stock(file, structure.root, structure.size).tensors
        infos = {
            name: records.records[f"data/{stored.key}"]
            for name, stored in found.items()
            if not name.startswith("callbacks.")
        }
    except (CheckpointUnreadable, KeyError):
        return None
    if any(info.file_size and not info.CRC for info in infos.values()):
        return None
    return {name: (info.file_size, info.CRC) for name, info in infos.items()}


READER: Final = Reader(
    format=FORMAT,
    find=find,
    open=lambda checkpoint: open_any(checkpoint.path),
    check=lambda checkpoint: check_file(checkpoint.path),
)
