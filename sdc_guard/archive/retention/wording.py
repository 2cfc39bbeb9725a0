"""What a plan is told as: a table, or an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .plan import Plan, Row


def table(plan: Plan) -> Iterator[str]:
    """The lines for a terminal, oldest first."""
    wide = max([len(row.stored.name) for row in plan.rows] + [10])
    for row in plan.rows:
        one = row.stored
        what = f"kept    {row.stays}" if row.stays is not None else "delete"
        what = "thin    to its weights" if row.thins else what
        yield f"{one.name:<{wide}}  {one.judged:<10}  {in_bytes(one.bytes):>9}  {what}"


def summary(
    plan: Plan, *, deleted: int | None = None, freed: int = 0, thinned: int = 0, thinning: int = 0
) -> Iterator[str]:
    """What comes of it.

    Args:
        plan: that was made; after deleting that of what is left.
        deleted, freed: checkpoints and bytes; None and 0 for a dry run.
        thinned: checkpoints of which a copy of the weights is left.
        thinning: in a dry run bytes that thinning would free.
    """
    kept = sum(row.stays is not None for row in plan.rows)
    if deleted is not None:
        thin = f"{thinned} thinned to their weights, " if thinned else ""
        yield f"{deleted} deleted, {thin}{in_bytes(freed)} freed; {kept} kept"
    elif plan.goes or plan.thins:
        freeing = in_bytes(plan.freed)
        freeing += f" and about {in_bytes(thinning)} by thinning" if plan.thins else ""
        thin = f"{len(plan.thins)} to thin to their weights, " if plan.thins else ""
        yield f"{kept} kept, {thin}{len(plan.goes)} to delete, {freeing}: --apply deletes them"
    else:
        yield f"{kept} kept, nothing to delete"
    if plan.uncovered < 1:
        yield (
            f"what goes wrong unnoticed costs {in_days(plan.excess)} of right training on average; "
            f"{plan.uncovered:.1%} of latencies are longer than the oldest clean one's age"
        )


def not_its_own(sealed: int) -> Iterator[str]:
    """What is said of checkpoints that other code saved and that `guard.seal` sealed.

    Args:
        sealed: how many there are.
    """
    if sealed:
        which, them = ("1 checkpoint", "it") if sealed == 1 else (f"{sealed} checkpoints", "them")
        yield f"{which} that your own code saved and guard.seal sealed: keep never deletes {them}"


def as_object(plan: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "checkpoints": [_row(row) for row in plan.rows],
        "to_delete": list(plan.goes),
        "to_thin": list(plan.thins),
        "bytes": plan.freed,
        "excess_days": plan.excess,
        "uncovered": plan.uncovered,
    }


def _row(row: Row) -> dict[str, Any]:
    one = row.stored
    return {
        "name": one.name,
        "step": one.step,
        "attempt": one.attempt,
        "status": one.judged,
        "bytes": one.bytes,
        "kept": row.stays is not None,
        "whole": not one.copy,
        "thins": row.thins,
        "why": row.stays,
    }


def in_bytes(count: int) -> str:
    """With three digits or so."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def in_days(days: float) -> str:
    """Days, hours or minutes."""
    if days >= 1:
        return f"{days:.1f} days"
    return f"{days * 24:.1f} hours" if days * 24 >= 1 else f"{days * 1440:.0f} minutes"
