"""Which of the whole checkpoints that go leave a copy of their weights, and which copies go. Pure.

Copies are spaced by the same policy: it is asked about whole ones and copies together, and those
that stay whole are held. So copies lie where the whole ones are too far apart.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from .grouped import by_step, moments_of
from .holds import in_order
from .policies import POLICIES
from .rule import Rule
from .stored import Stored


@dataclass(frozen=True)
class Thinned:
    """What becomes of whole checkpoints that go and of copies.

    Attributes:
        goes: names of those that go without a copy, in order.
        thins: names of the whole ones of which a copy stays, in order.
    """

    goes: tuple[str, ...] = ()
    thins: tuple[str, ...] = ()


def thinning(
    stored: Sequence[Stored], goes: Sequence[str], held: Container[str], rule: Rule
) -> Thinned:
    """Decide; nothing where no copies are asked for.

    A whole one whose tensors are not known to be parameters leaves no copy. A copy of one that
    stays whole is of no use.

    Args:
        stored: all that there is.
        goes: names of the good whole ones that do not stay whole, in order.
        held: names of those that stay whatever the policy.
        rule: as it was asked for, with its spacing.
    """
    if rule.weights is None:
        return Thinned()
    gone = set(goes)
    candidates = [
        one
        for one in in_order(stored)
        if one.good or (one.copy and one.sound)
        if one.name not in gone or one.has_weights
    ]
    groups = by_step(candidates)
    whole = [{one.name for one in group if one.good and one.name not in gone} for group in groups]
    dropped = _dropped(groups, whole, held, rule)
    names = [name for place in dropped for name in _names(groups[place]) if name not in held]
    redundant = [
        one.name
        for group, staying in zip(groups, whole, strict=True)
        for one in group
        if staying and one.copy and one.name not in held
    ]
    out = {*names, *redundant}
    known = {one.name for one in candidates}
    thins = tuple(name for name in goes if name in known and name not in out)
    lost = [name for name in goes if name not in known]
    return Thinned((*lost, *names, *redundant), thins)


def _dropped(
    groups: list[list[Stored]], whole: list[set[str]], held: Container[str], rule: Rule
) -> tuple[int, ...]:
    """Places in `groups` of what the policy does not keep as copies, in order."""
    stays = {one.name for group, names in zip(groups, whole, strict=True) if names for one in group}
    stays |= {one.name for group in groups for one in group if one.name in held}
    moments, _ = moments_of(groups, _copies(rule), stays)
    return POLICIES[rule.policy](moments) if rule.weights else tuple(moments.free)


def _copies(rule: Rule) -> Rule:
    return Rule(
        max(1, rule.weights or 0), rule.policy, horizon=rule.horizon, spacing=rule.spacing
    )  # fmt: skip


def _names(group: list[Stored]) -> list[str]:
    return [one.name for one in group]
