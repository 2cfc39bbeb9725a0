"""The formats that are read, in the order in which they are tried.

Whose folders say most comes first: a guard's archive has manifests, the folders of trainers and of
DCP have files that no other format has, and a file of weights may lie in any of them.
"""

from __future__ import annotations

from typing import Final

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
_BY_FORMAT: Final = {reader.format: reader for reader in READERS}


def reader_of(format: str) -> Reader:
    """The reader of a format, by `Checkpoint.format`.

    Raises:
        KeyError: there is none of that name.
    """
    return _BY_FORMAT[format]
