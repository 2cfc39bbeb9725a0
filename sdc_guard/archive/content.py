"""What a checkpoint holds, whatever its format: tensors that are read when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint, not read yet.

    Attributes:
        dtype: of its elements.
        shape: of the whole tensor, also where it lies in several pieces.
        files: those that hold its bytes.
        read: reads it, as a CPU tensor of that dtype and shape. May share memory with the file,
            read-only: whoever writes to it copies it before.

            Raises CheckpointUnreadable if its bytes are not all there.
        head: reads its first bytes, row by row, as many as are cheap to read; None where that
            is no cheaper than all of them. Raises as `read`.
        once: reads it with size 1 in each dimension along which it repeats what is stored; None
            where it repeats nothing. Raises as `read`.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    files: tuple[Path, ...]
    read: Callable[[], torch.Tensor]
    head: Callable[[], bytes] | None = None
    once: Callable[[], torch.Tensor] | None = None

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Content:
    """An opened checkpoint.

    Attributes:
        tensors: by name: the dotted path in what was saved, or the name that the format gives it.
        aliases: names that are other names of one of `tensors`: tied weights that were stored once.
        numbers: plain numbers and texts that were saved beside them, by dotted path.
        foreign: dotted paths of what is neither, with its type's name: "not evaluated".
        step: the step that the checkpoint itself says it is of; None if it does not.
    """

    tensors: Mapping[str, StoredTensor]
    aliases: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int | float | str | bool] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None


@dataclass(frozen=True)
class Integrity:
    """What reading every byte of a checkpoint showed.

    Attributes:
        damaged: tensor name, or a file's or record's where no tensor is concerned, to what is
            wrong with it, in a line.
        intact: names of the tensors whose bytes fit a checksum.
        unchecked: names of the tensors that were read and that the format keeps no checksum of;
            and of files beside them that have none.
        bytes: that were read.
        why: why some of `unchecked` are, where it is not just that.
        foreign: names of the tensors of kinds that are not evaluated, as quantized ones: their
            records' checksums count, and they are among `damaged` alone if one does not fit.
    """

    damaged: Mapping[str, str]
    intact: tuple[str, ...]
    unchecked: tuple[str, ...]
    bytes: int
    why: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
