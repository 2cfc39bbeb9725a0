"""Single safetensors files, as scripts, `save_model` and `save_pretrained` write them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sdc_guard.archive.safetensors_header import Header, read_header
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint
from ..content import Content, Integrity
from .findings import Findings
from .hf_layout import is_trainer_folder
from .listing import is_file, is_folder, names_in
from .reader import Reader
from .safetensors_index import sets_in
from .safetensors_tensors import aliases, check_tensors, step, tensors, texts

FORMAT: Final = "safetensors"
_SUFFIX: Final = ".safetensors"
_MODEL: Final = "model.safetensors"


def find(path: Path) -> list[Checkpoint]:
    """The file that `path` is, the files in it, or those in the folders in it, one in each.

    Shards and the folders of the Hugging Face Trainer are other readers'.
    """
    if is_file(path):
        return [_checkpoint(path)] if path.suffix == _SUFFIX else []
    if not is_folder(path) or is_trainer_folder(path):
        return []
    files = [path / name for name in _single(path)]
    if not files:
        files = [file for name in sorted(names_in(path)) for file in _model_of(path / name)]
    return [_checkpoint(file) for file in files]


def _single(folder: Path) -> list[str]:
    names = [name for name in sorted(names_in(folder)) if name.endswith(_SUFFIX)]
    if not names:
        return []
    shards = {file for one in sets_in(folder) for file in one.files}
    return [name for name in names if name not in shards and is_file(folder / name)]


def _model_of(folder: Path) -> list[Path]:
    """The file that is a folder's model: the only one, or the one with the usual name."""
    if not is_folder(folder) or is_trainer_folder(folder):
        return []
    names = _single(folder)
    if len(names) > 1:
        names = [name for name in names if name == _MODEL]
    return [folder / name for name in names]


def _checkpoint(file: Path) -> Checkpoint:
    return describe(file).checkpoint(file, FORMAT, file.stem, file.parent.name)


def describe(file: Path) -> Findings:
    """What a file's header says; never raises for what is wrong with it."""
    try:
        header = read_header(file)
    except CheckpointUnreadable as error:
        return Findings((error.what,), readable=False)
    trouble = (header.trouble,) if header.trouble else ()
    return Findings(trouble, told(header), not trouble, step(header.metadata))


def told(header: Header) -> tuple[str, ...]:
    """What is worth telling of a file whose tensors are all there."""
    if not header.entries or not header.trailing:
        return ()
    noun = "byte" if header.trailing == 1 else "bytes"
    return (f"{header.trailing:,} trailing {noun}; tensors intact",)


def open_file(file: Path) -> Content:
    """What a file holds.

    Raises:
        CheckpointUnreadable: that cannot be told, or it holds no tensor.
    """
    header = read_header(file)
    if not header.entries:
        raise CheckpointUnreadable(
            "no tensors in file", where=str(file), next_step="give the file with the weights"
        )
    found = tensors(file, header)
    other = aliases(header.metadata, found)
    return Content(found, other, texts(header.metadata, other), step=step(header.metadata))


def check_file(file: Path) -> Integrity:
    """Read every byte of a file.

    Raises:
        CheckpointUnreadable: nothing of it can be read.
    """
    return check_tensors(file, read_header(file))


def _open(checkpoint: Checkpoint) -> Content:
    return open_file(checkpoint.path)


def _check(checkpoint: Checkpoint) -> Integrity:
    return check_file(checkpoint.path)


READER: Final = Reader(format=FORMAT, find=find, open=_open, check=_check)
