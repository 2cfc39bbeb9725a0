"""What a reader of a checkpoint format does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import Checkpoint
from ..content import Content, Integrity


@dataclass(frozen=True)
class Reader:
    """One format. Nothing of a file is ever executed, whatever it holds.

    Attributes:
        format: its name, `Checkpoint.format` of what it finds.
        find: the checkpoints of this format that a path is, or that lie directly in the folder
            that it is; [] if there are none. Reads names and headers, never all tensors: a thousand
            folders take less than two seconds. What is damaged, incomplete or no more than a
            pointer is found too, `readable=False` with the reason; no foreseeable damage raises.
        open: what one of them holds, lazily.

            Raises CheckpointUnreadable where that cannot be told.
        check: reads every byte of one of them.

            Raises CheckpointUnreadable where nothing of it can be read.
    """

    format: str
    find: Callable[[Path], list[Checkpoint]]
    open: Callable[[Checkpoint], Content]
    check: Callable[[Checkpoint], Integrity]
