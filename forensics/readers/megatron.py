"""Folders of Megatron-LM: iter_0000100, named by latest_checkpointed_iteration.txt beside them.

As Megatron documents them: a folder per model-parallel rank, mp_rank_00 or mp_rank_00_001, with
`model_optim_rng.pt`, a file of `torch.save` that says its `iteration`, and with the distributed
optimizer `distrib_optim.pt`. Its newer distributed form, with `.metadata` or `metadata.json` in
the folder, is another format: where PyTorch's own reader of it would do, the reader for that takes
it; the form made with zarr is not read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content, Integrity
from .reader import Reader
from .step_of import settle, step_in_name
from .torch_parts import check_parts, fault_of, open_parts
from .torch_zip import open_any
from .tracker import with_tracker

FORMAT: Final = "megatron"
TRACKER: Final = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_\d+|release")
_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
_FILES = "mp_rank_*/*.pt"
_MODEL = "model_optim_rng.pt"
_OLD_MODEL = "model_rng.pt"  # beside optim.pt, in older ones


def find(path: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, or the one that `path` is."""
    if not path.is_dir():
        return []
    if _is_one(path):
        return [_describe(path)]
    found = [_describe(folder) for folder in sorted(path.iterdir()) if _is_one(folder)]
    return with_tracker(found, path / TRACKER, _folder_of)


def _folder_of(text: str) -> str:
    return f"iter_{int(text):07d}" if text.isdecimal() and len(text) < 18 else text


def _is_one(folder: Path) -> bool:
    if not (folder.is_dir() and _FOLDER.fullmatch(folder.name)):
        return False
    return not (folder / ".metadata").exists()  # the reader of distributed checkpoints has it


def _describe(folder: Path) -> Checkpoint:
    named = step_in_name(folder.name)
    if (folder / "metadata.json").exists():
        reason = "unreadable: Megatron's distributed form made with zarr, which is not read"
        number = settle(None, named).step
        return Checkpoint(number, folder, FORMAT, "untested", (reason,), readable=False)
    files = _files(folder)
    faults = [f"{file.parent.name}/{fault}" for file in files if (fault := fault_of(file))]
    faults += _missing(folder)
    inside = None
    try:
        inside = None if faults else _step(files)
    except CheckpointUnreadable as error:
        faults.append(f"{Path(error.where).parent.name}/{Path(error.where).name}: {error.what}")
    step = settle(inside, named)
    if faults:
        reasons = tuple(f"incomplete: {fault}" for fault in faults)
        return Checkpoint(step.step, folder, FORMAT, "untested", reasons, readable=False)
    return Checkpoint(
        step.step, folder, FORMAT, "untested", named_step=step.named_step, notes=step.notes
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(_FILES))


def _step(files: list[Path]) -> int | None:
    models = [file for file in files if file.name in (_MODEL, _OLD_MODEL)]
    return open_any(models[0]).step if models else None


def _missing(folder: Path) -> list[str]:
    """Ranks without a model, and ranks without a folder although a later one has it."""
    ranks = [item for item in sorted(folder.glob("mp_rank_*")) if _RANK.fullmatch(item.name)]
    if not ranks:
        return ["no mp_rank_00 is in it"]
    found = [
        f"{rank.name}/{_MODEL} is missing"
        for rank in ranks
        if not any((rank / name).exists() for name in (_MODEL, _OLD_MODEL))
    ]
    matches = [match for rank in ranks if (match := _RANK.fullmatch(rank.name))]
    tensor, pipe = ({int(m[i]) for m in matches if m[i] is not None} for i in (1, 2))
    for what, there in (("tensor", tensor), ("pipeline", pipe)):
        absent = next((n for n in range(len(there)) if n not in there), None)
        if absent is not None:
            found.append(f"{what}-parallel rank {absent} is missing")
    whole = len(tensor) * max(1, len(pipe))
    if not found and len(ranks) < whole:
        found.append(f"{whole - len(ranks)} of {whole} ranks are missing")
    return found


def open_checkpoint(checkpoint: Checkpoint) -> Content:
    """What all its files hold, lazily.

    Raises:
        CheckpointUnreadable: one of them is damaged, or none is there.
    """
    files = _files(checkpoint.path)
    return replace(open_parts(checkpoint.path, files), step=_step(files))


def check(checkpoint: Checkpoint) -> Integrity:
    """Read every byte of its files, and compare each record with its CRC-32.

    Raises:
        CheckpointUnreadable: none of them can be read.
    """
    return check_parts(checkpoint.path, _files(checkpoint.path))


READER: Final = Reader(format=FORMAT, find=find, open=open_checkpoint, check=check)
