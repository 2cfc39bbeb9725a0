"""The formats that are read, in the order in which they are tried.

Whose folders say most comes first: a guard's archive has manifests, the folders of trainers and of
DCP have files that no other format has, and a file of weights may lie in any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from sdc_guard.archive.read_trouble import raise_trouble
from sdc_guard.errors import CheckpointUnreadable, SdcGuardError

from ..checkpoint import Checkpoint
from ..unforeseen import unforeseen
from . import (
    dcp,
    dcp_hf,
    deepspeed,
    guard_archive,
    hf_trainer,
    lightning,
    megatron,
    safetensors_file,
    safetensors_shards,
    sealed_files,
    torch_legacy,
    torch_zip,
)
from .reader import Reader

_Found = TypeVar("_Found")
_OWN: Final = (SdcGuardError, OSError)  # which say what is wrong, and where


def _bounded(call: Callable[[Checkpoint], _Found]) -> Callable[[Checkpoint], _Found]:
    """A call of a reader of which one file's trouble stays its own."""

    def bounded(checkpoint: Checkpoint) -> _Found:
        try:
            return call(checkpoint)
        except _OWN:
            raise
        except Exception as error:  # because one file nobody foresaw must not end a whole scan
            raise_trouble(error, checkpoint.path)
            raise CheckpointUnreadable(
                unforeseen(error, "reading"),
                where=str(checkpoint.path),
                next_step="use another checkpoint",
            ) from error

    return bounded


READERS: Final[tuple[Reader, ...]] = (
    guard_archive.READER,
    sealed_files.READER,  # its seals say which folders are checkpoints
    hf_trainer.READER,  # its folders may have one of DeepSpeed in them
    dcp.READER,  # torchtitan's folders, and Megatron's newer ones
    dcp_hf.READER,
    deepspeed.READER,
    megatron.READER,
    lightning.READER,
    safetensors_shards.READER,
    safetensors_file.READER,
    torch_zip.READER,
    torch_legacy.READER,
)
_BY_FORMAT: Final = {
    reader.format: replace(reader, open=_bounded(reader.open), check=_bounded(reader.check))
    for reader in READERS
}


def reader_of(format: str) -> Reader:
    """The reader of a format, by `Checkpoint.format`. What nobody foresaw is CheckpointUnreadable.

    Raises:
        KeyError: there is none of that name.
    """
    return _BY_FORMAT[format]
