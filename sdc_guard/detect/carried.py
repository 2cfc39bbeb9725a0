"""The carried digest: what a step left behind must be what the next one finds.

Between two optimizer steps nothing may write to parameters or optimizer state. The digests taken
after step t−1 and before step t must therefore be equal; a difference is proof that something
else wrote there, and says in which tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .alert import Alert

Key = tuple[str, int]  # kind of tensor, number of the layer
ADVICE: Final = "; if your script wrote to it on purpose, call guard.refresh() after that"


@dataclass(frozen=True)
class DigestTable:
    """Digests of one phase of one step: `rows[i]` = (h, s1, s2) of `keys[i]`, int64."""

    keys: tuple[Key, ...]
    rows: NDArray[np.int64]


def changed(left_behind: DigestTable, found: DigestTable) -> list[tuple[Key, int, int]]:
    """Tensors in both tables whose digests differ: key, place in the first and in the second.

    A tensor that is only in one of them (state made at the first step, a new parameter) has
    nothing to be compared with.
    """
    count = len(left_behind.keys)
    if left_behind.keys == found.keys[:count]:  # the usual case; what comes after is not carried
        places = np.flatnonzero((left_behind.rows != found.rows[:count]).any(axis=1))
        return [(found.keys[place], int(place), int(place)) for place in places]
    place_of = {key: place for place, key in enumerate(left_behind.keys)}
    return [
        (key, place_of[key], place)
        for place, key in enumerate(found.keys)
        if key in place_of and (left_behind.rows[place_of[key]] != found.rows[place]).any()
    ]


def in_words(kind: str) -> str:
    """A kind of tensor in a sentence: that of an optimizer's step counter is just "step"."""
    return "step counter" if kind == "step" else kind


def carried_alert(step: int, key: Key, name: str, location: dict[str, Any]) -> Alert:
    """The alert for one tensor that changed between two steps.

    Args:
        step: the step that found the change.
        key: what changed.
        name: the layer's name.
        location: {"index", "bits", "before", "after"} of a single element, or empty; "dtype" where
            it is not the layer's.
    """
    kind, layer = key
    if location:
        where = f"element {location['index']}, bits {location['bits']}"
    else:
        where = "more than one element, or no longer readable"
    text = (
        f"{in_words(kind)} changed between step {step - 1} and step {step} outside the optimizer "
        f"({where}){ADVICE}"
    )
    detail = {"text": text, "kind": kind, **location}
    return Alert(step, "carried_digest", layer, name, 1.0, 0.0, "proven", detail)
