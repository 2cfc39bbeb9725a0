"""Which checkpoints are not what was judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from .mark import compare
from .standing import name_of
from .state import State


@dataclass(frozen=True)
class Change:
    """That a checkpoint is not, or no longer by its times, what was judged.

    Attributes:
        event: for the journal.
        text: for the user; "" if its bytes are the same.
    """

    event: dict[str, Any]
    text: str


def changes(state: State, archive: Path, candidates: Sequence[Checkpoint]) -> list[Change]:
    """Which of the judged checkpoints are not what they were. Those that are gone are left out."""
    there = {name_of(one, archive): one for one in candidates}
    told = (*state.passed, *state.entries)
    # each judge's newest: a file may have changed between two of them
    newest = {(x.name, x.by): x for x in told if x.judgement is not None and x.mark is not None}
    found: dict[str, Change] = {}
    for (name, _), entry in newest.items():
        if name not in there or entry.mark is None or entry.judgement is None:
            continue
        if name in found and found[name].text:
            continue
        what, mark = compare(entry.mark, there[name].path)
        about = {"checkpoint": name, "step": entry.step, "at": time.time()}
        if what == "touched":
            found[name] = Change({"event": "touched", **about, "mark": mark.as_dict()}, "")
        elif what == "changed":
            text = (
                f"step {entry.step} changed since it was judged ({entry.judgement.verdict}, by "
                f"{entry.by}): that counts no more"
            )
            found[name] = Change({"event": "changed", **about}, text)
    return list(found.values())
