"""The step that the name of a checkpoint says."""

from __future__ import annotations

import re

# step-7, step_7, step=7, checkpoint-7, ckpt-7, iter_0000007, global_step7, or a plain number
_STEP = re.compile(
    r"(?:^|[-_.=])(?:(?:global[-_]?)?step|iter(?:ation)?|checkpoint|ckpt)[-_=]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,18}")


def step_in_name(name: str) -> int | None:
    """The step that a folder's or file's name says; None if it has no number.

    A number after a word for steps counts most, else the last one.
    """
    if found := _STEP.findall(name):
        return int(found[-1])
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None
