"""Folders of DeepSpeed: global_step100, named by the tracker file `latest` beside them.

As DeepSpeed documents them: `mp_rank_00_model_states.pt` holds the module and `global_steps`;
with ZeRO each data-parallel rank has `[bf16_]zero_pp_rank_N_mp_rank_00_optim_states.pt`, and from
stage 3 on `zero_pp_rank_N_mp_rank_00_model_states.pt`; pipelines have `layer_00-model_00-
model_states.pt`. Each is a file of `torch.save`.
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

FORMAT: Final = "deepspeed"
TRACKER: Final = "latest"
_STATES = "*_states.pt"
_FOLDER = re.compile(r"global_step\d+")
_MODEL = "model_states.pt"
_RANK = re.compile(r"((?:\w+_)?zero_pp_rank_)(\d+)(_.*)")
_MOST_RANKS: Final = 100_000  # that a file may claim


def find(path: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, or the one that `path` is.

    A folder is one if it is called so, or, under another tag, if its files are.
    """
    if not path.is_dir():
        return []
    if _is_one(path):
        return [_describe(path)]
    found = [_describe(folder) for folder in sorted(path.iterdir()) if _is_one(folder)]
    return with_tracker(found, path / TRACKER)


def _is_one(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return any(folder.glob(_STATES)) or bool(_FOLDER.fullmatch(folder.name))


def _describe(folder: Path) -> Checkpoint:
    named = step_in_name(folder.name)
    files = _files(folder)
    faults = [fault for file in files if (fault := fault_of(file))]
    inside, ranks = None, 0
    try:
        inside, ranks = (None, 0) if faults else _said(files)
    except CheckpointUnreadable as error:
        faults.append(f"{Path(error.where).name}: {error.what}")
    faults += _missing(files, ranks)
    step = settle(inside, named)
    if faults:
        reasons = tuple(f"incomplete: {fault}" for fault in faults)
        return Checkpoint(step.step, folder, FORMAT, "untested", reasons, readable=False)
    return Checkpoint(
        step.step, folder, FORMAT, "untested", named_step=step.named_step, notes=step.notes
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(_STATES))


def _said(files: list[Path]) -> tuple[int | None, int]:
    """The step and the number of data-parallel ranks that the model states say; 0 if they do not.

    Raises:
        CheckpointUnreadable: they are damaged.
    """
    # a pipeline's layers do not say it
    first = [file for file in files if file.name.endswith(_MODEL) and file.name.find("layer_") < 0]
    if not first:
        return None, 0
    content = open_any(min(first, key=lambda file: (not file.name.startswith("mp_"), file.name)))
    ranks = content.numbers.get("dp_world_size", 0)
    return content.step, ranks if isinstance(ranks, int) else 0


def _missing(files: list[Path], ranks: int) -> list[str]:
    """Files that should be there by the number of ranks, or because a later rank's is."""
    if not any(file.name.endswith(_MODEL) for file in files):
        return [f"no *_{_MODEL} is in it"]
    known: dict[str, set[int]] = {}
    for file in files:
        if found := _RANK.fullmatch(file.name):
            known.setdefault(f"{found[1]}{{}}{found[3]}", set()).add(int(found[2]))
    count = max((ranks, *(max(there) + 1 for there in known.values())))
    absent = [
        form.format(rank)
        for form, there in sorted(known.items())
        for rank in range(min(count, _MOST_RANKS))
        if rank not in there
    ]
    if not absent:
        return []
    more = f" and {len(absent) - 1:,} more" if len(absent) > 1 else ""
    whole = sum(map(len, known.values())) + len(absent)
    return [f"{absent[0]}{more} of {whole:,} files of the optimizer missing"]


def open_checkpoint(checkpoint: Checkpoint) -> Content:
    """What all its files hold, lazily.

    Raises:
        CheckpointUnreadable: one of them is damaged, or none is there.
    """
    files = _files(checkpoint.path)
    content = open_parts(checkpoint.path, files)
    return replace(content, step=_said(files)[0])


def check(checkpoint: Checkpoint) -> Integrity:
    """Read every byte of its files, and compare each record with its CRC-32.

    Raises:
        CheckpointUnreadable: none of them can be read.
    """
    return check_parts(checkpoint.path, _files(checkpoint.path))


READER: Final = Reader(format=FORMAT, find=find, open=open_checkpoint, check=check)
