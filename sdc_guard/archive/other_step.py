"""Which step a checkpoint's tensors are of, where they are not of the one that it says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..digest import Digest

Named: TypeAlias = tuple[str | None, str | None]
"""Kind and layer of a tensor of the trace."""
Steps: TypeAlias = Mapping[int, Mapping[Named, Digest]]
"""The digests that steps left, by step."""
Around: TypeAlias = Callable[[], Steps]


def of_other_steps(said: int, wrong: Mapping[str, tuple[Named, Digest]], steps: Steps) -> list[str]:
    """What to say if each tensor that is wrong is as a step beside it left it; [] if one is not.

    Of several such steps the nearest counts.

    Args:
        said: the step that the checkpoint says it is of.
        wrong: tensors that are not as that step left them, with the digests that they have.
        steps: what the steps beside it left.
    """
    near = sorted((step for step in steps if step != said), key=lambda at: (abs(at - said), at))
    of: dict[int, list[str]] = {}
    for name, (key, found) in wrong.items():
        step = next((step for step in near if steps[step].get(key) == found), None)
        if step is None:
            return []
        of.setdefault(step, []).append(name)
    return [_line(said, step, names) for step, names in sorted(of.items())]


def _line(said: int, step: int, names: list[str]) -> str:
    hold = "1 tensor holds" if len(names) == 1 else f"{len(names)} tensors hold"
    how = "copied while the training went on" if step > said else "an older copy"
    return f"{hold} step {step} ({names[0]} first): {how}"
