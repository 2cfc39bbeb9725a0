"""Checkpoints whose file cannot be read: no evidence of the training, and a finding all the same.

What is cut off, empty or may not be read says nothing of the training that wrote it, so a search
has no evidence either way. Nobody can restore from it, and that is told with every answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .checkpoint import Checkpoint
from .oracles.judgement import Judgement

_MOST: Final = 3  # reasons in a sentence


def unread(
    candidates: Sequence[Checkpoint], judgements: Mapping[int, Judgement]
) -> tuple[dict[str, Any], ...]:
    """Those that cannot be read: {step, path, reason}, by step.

    Args:
        candidates: by step.
        judgements: by place. What was judged corrupt is that, whether or not it can be read.
    """
    found = []
    for place, one in enumerate(candidates):
        judged = judgements.get(place)
        if one.readable or (judged is not None and judged.verdict == "corrupt"):
            continue
        found.append({"step": one.step, "path": str(one.path), "reason": why(one)})
    return tuple(found)


def why(checkpoint: Checkpoint) -> str:
    """Why it cannot be read, in a few words."""
    first = next((one for one in checkpoint.reasons if one.startswith("unreadable: ")), "")
    return first.removeprefix("unreadable: ") or "; ".join(checkpoint.reasons) or "not known why"


def in_words(found: Iterable[Mapping[str, Any]]) -> str:
    """That the files cannot be read, as a sentence without its full stop; "" where all can."""
    told = list(found)
    if not told:
        return ""
    if len(told) == 1:
        one = told[0]
        return (
            f"the file of step {one['step']} cannot be read: {one['reason']}: "
            "do not restore from it"
        )
    named = "; ".join(f"{one['step']}: {one['reason']}" for one in told[:_MOST])
    more = f"; and {len(told) - _MOST:,} more" if len(told) > _MOST else ""
    return (
        f"the files of {len(told):,} steps cannot be read ({named}{more}): do not restore from them"
    )
