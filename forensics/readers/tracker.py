"""Files that name the newest checkpoint, written last: DeepSpeed's `latest`, Megatron's tracker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sdc_guard.archive.regular_file import open_regular

from ..checkpoint import Checkpoint

_MOST_BYTES = 200


def with_tracker(
    found: list[Checkpoint], tracker: Path, folder_of: Callable[[str], str] = str
) -> list[Checkpoint]:
    """The checkpoints, the newest with a note where the tracker file names another one.

    Args:
        tracker: the file; it need not be there.
        folder_of: the folder's name of what stands in it.
    """
    try:
        with open_regular(tracker) as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return found
    if not found:
        return found
    newest = max(found, key=lambda one: one.step)
    name = folder_of(text)
    if newest.path.name == name:
        return found
    if any(one.path.name == name for one in found):
        note = f"the tracker file {tracker.name} names {name}: this one may not be finished"
    else:
        note = f"the tracker file {tracker.name} names {name or 'nothing'}, which is not there"
    return [replace(one, notes=(*one.notes, note)) if one is newest else one for one in found]
