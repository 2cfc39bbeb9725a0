"""Files of `torch.save`, of scripts that never saw a guard."""

from __future__ import annotations

import re
from pathlib import Path

from sdc_guard.archive.torch_file import read_torch_file
from sdc_guard.errors import CheckpointUnreadable

from ..checkpoint import Checkpoint, Status

FORMAT = "torch"
_SUFFIXES = (".pt", ".pth")
_NUMBER = re.compile(r"\d+")


def find(path: Path) -> list[Checkpoint]:
    """The torch.save files in a folder, or the one that `path` is."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [_describe(file) for file in files if file.suffix in _SUFFIXES and file.is_file()]


def _describe(file: Path) -> Checkpoint:
    numbers = _NUMBER.findall(file.stem)
    named = int(numbers[-1]) if numbers else 0
    try:
        content = read_torch_file(file)
    except CheckpointUnreadable as error:
        return Checkpoint(named, file, FORMAT, "untested", (error.what,), readable=False)
    inner = named if content.step is None else content.step
    reasons = [f"{name}: {reason}" for name, reason in content.damaged.items()]
    if numbers and inner != named:
        reasons.append(f"the name says step {named}, the file says step {inner}")
    status: Status = "corrupt" if content.damaged else "untested"
    return Checkpoint(inner, file, FORMAT, status, tuple(reasons))
