"""Whether checkpoints are missing, or there twice, by their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .checkpoint import Checkpoint

_MOST_NAMED: Final = 3  # steps, or paths, in a line


def usual_distance(steps: Sequence[int]) -> int | None:
    """How far apart the steps are as a rule; None where there is no rule.

    Most distances are the same; or, where there are few, all are multiples of the smallest and
    fewer than half as many steps are missing as are there.

    Args:
        steps: in order; repeated ones count once.
    """
    distances = [b - a for a, b in pairwise(steps) if b > a]
    if not distances:
        return None
    usual, count = Counter(distances).most_common(1)[0]
    if count >= 2 and 2 * count > len(distances):
        return usual
    least = min(distances)
    missing = sum(distance // least - 1 for distance in distances)
    whole = all(number % least == 0 for number in (*distances, steps[0]))
    return least if whole and 2 * missing < len(distances) + 1 else None


def gaps(steps: Sequence[int]) -> list[str]:
    """A line for each place where checkpoints seem to be missing.

    Args:
        steps: in order.
    """
    usual = usual_distance(steps)
    if usual is None:
        return []
    return [_gap(a, b, usual) for a, b in pairwise(steps) if b - a > usual]


def _gap(before: int, after: int, usual: int) -> str:
    missing = range(before + usual, after, usual)
    count = (after - before - 1) // usual  # len() of a range ends at 2^63
    if (after - before) % usual:
        where = f"between {before} and {after}"
    else:
        named = ", ".join(str(step) for step in missing[:_MOST_NAMED])
        where = f"at {named}{f' ... {missing[-1]}' if count > _MOST_NAMED else ''}"
    return f"no checkpoint {where}; they are usually {usual} apart"


def duplicates(found: Sequence[Checkpoint]) -> list[str]:
    """A line for each step of which one attempt has several checkpoints.

    Args:
        found: by step.
    """
    by_step: dict[tuple[int, int], list[str]] = {}
    for one in found:
        by_step.setdefault((one.step, one.attempt), []).append(one.path.name)
    lines = []
    for (step, _), names in by_step.items():
        if len(names) > 1:
            named = ", ".join(names[:_MOST_NAMED]) + ", ..." * (len(names) > _MOST_NAMED)
            lines.append(f"{len(names)} checkpoints of step {step}: {named}")
    return lines
