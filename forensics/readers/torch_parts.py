"""A checkpoint that is a folder of `torch.save` files, a file per rank."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdc_guard.archive.regular_file import open_regular
from sdc_guard.archive.torch_damage import LEGACY, ZIP, head_of, pointer_in, why_unreadable
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..content import Content, Integrity, StoredTensor
from .torch_zip import check_file, open_any

_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22  # torch.save writes no comment behind it


def open_parts(folder: Path, files: Sequence[Path]) -> Content:
    """What the files hold, each name after its file's: "mp_rank_00_model_states/module.w".

    `Content.step` is left open: which number is the step, the format says.

    Raises:
        CheckpointUnreadable: one of them is damaged, or none is there.
    """
    _some(folder, files)
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    numbers: dict[str, int | float | str | bool] = {}
    foreign: dict[str, str] = {}
    for file in files:
        part, name = open_any(file), part_name(folder, file)
        tensors |= {f"{name}/{key}": value for key, value in part.tensors.items()}
        aliases |= {f"{name}/{key}": f"{name}/{value}" for key, value in part.aliases.items()}
        numbers |= {f"{name}/{key}": value for key, value in part.numbers.items()}
        foreign |= {f"{name}/{key}": value for key, value in part.foreign.items()}
    return Content(tensors, aliases, numbers, foreign)


def check_parts(folder: Path, files: Sequence[Path]) -> Integrity:
    """Read every byte of the files; one that cannot be read at all is damaged by its name.

    Raises:
        CheckpointUnreadable: none of them can be read, or none is there.
    """
    _some(folder, files)
    whole = Integrity({}, (), (), 0)
    last: CheckpointUnreadable | None = None
    readable = 0
    for file in files:
        name = part_name(folder, file)
        try:
            part = check_file(file)
        except ReadFailed:
            raise
        except CheckpointUnreadable as error:
            whole = replace(whole, damaged={**whole.damaged, name: error.what})
            last = error
            continue
        readable += 1
        whole = Integrity(
            {**whole.damaged, **{f"{name}/{key}": why for key, why in part.damaged.items()}},
            (*whole.intact, *(f"{name}/{key}" for key in part.intact)),
            (*whole.unchecked, *(f"{name}/{key}" for key in part.unchecked)),
            whole.bytes + part.bytes,
            {**whole.why, **{f"{name}/{key}": why for key, why in part.why.items()}},
            (*whole.foreign, *(f"{name}/{key}" for key in part.foreign)),
        )
    if last is not None and not readable:
        raise last
    return whole


def _some(folder: Path, files: Sequence[Path]) -> None:
    if not files:
        raise CheckpointUnreadable("no file of a rank is in it", where=str(folder))


def part_name(folder: Path, file: Path) -> str:
    """How the names of what a file holds begin."""
    return file.relative_to(folder).with_suffix("").as_posix()


def fault_of(file: Path) -> str | None:
    """What is wrong with a part, from its first and last bytes: None if nothing shows there."""
    try:
        size = file.stat().st_size
    except OSError:
        return f"{file.name} is missing"
    if size == 0:
        return f"{file.name} is empty (0 bytes)"
    head = head_of(file)
    if pointer := pointer_in(head):
        return f"{file.name} is {pointer}"
    if head.startswith(LEGACY):
        return None
    if head.startswith(ZIP) and _end_of(file, size).startswith(_ZIP_END):
        return None
    return f"{file.name}: {why_unreadable(file, zipfile.BadZipFile('no zip directory'))}"


def _end_of(file: Path, size: int) -> bytes:
    try:
        with open_regular(file) as content:
            content.seek(max(0, size - _ZIP_END_BYTES))
            return content.read()
    except OSError:
        return b""
