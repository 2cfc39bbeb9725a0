"""What is kept and what goes: the policy, and what it has no say in. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from .grouped import by_step, moments_of
from .holds import ends, holds, in_order
from .latency import LogUniform, excess
from .policies import POLICIES
from .rule import Rule
from .stored import Archive, Stored
from .thinned import thinning

_ASIDE: Final = "one of the newest set aside"


@dataclass(frozen=True)
class Row:
    """One checkpoint, and why it stays; None if it goes.

    Attributes:
        thins: whether a copy of its weights stays in its place, by the policy.
    """

    stored: Stored
    stays: str | None
    thins: bool = False


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        rows: all checkpoints, oldest first.
        goes: names of those that go, in the order in which they are to go: after each of them
            the plan of what is left is the rest of this one.
        thins: names of those of which a copy of the weights is to stay, likewise in order; they are
            none of `goes`.
        spacing: days and steps between two saves, as they were taken.
        excess: days that one goes back too far on average with what stays; 0 without any.
        uncovered: the probability of a latency that nothing which stays is old enough for.
    """

    rows: tuple[Row, ...]
    goes: tuple[str, ...]
    spacing: tuple[float, float]
    excess: float
    uncovered: float
    thins: tuple[str, ...] = ()

    @property
    def freed(self) -> int:
        """Bytes of what goes."""
        return sum(row.stored.bytes for row in self.rows if row.stays is None and not row.thins)


def plan(archive: Archive, rule: Rule, now: float) -> Plan:
    """Decide.

    Checkpoints of one step of one attempt, as several ranks or repeated saves leave them, stay or
    go together. Ages count from the newest clean one, so that a run that rests loses nothing.

    Args:
        archive: as it is.
        rule: as it was asked for.
        now: seconds since the epoch, for the grace.
    """
    held, protected = holds(archive, now, rule.grace), ends(archive)
    stored = in_order(archive.stored)
    groups = by_step([one for one in stored if one.good])
    moments, spacing = moments_of(groups, rule, held)
    goes = [
        one.name
        for place in POLICIES[rule.policy](moments)
        for one in groups[place]
        if not any(also.name in protected for also in groups[place])
    ]
    thinned = thinning(stored, goes, held, replace(rule, spacing=spacing))
    goes = [name for name in dict.fromkeys((*thinned.goes, *goes)) if name not in thinned.thins]
    aside = [one.name for one in stored if _is_aside(one, rule) and one.name not in held]
    spared = {*aside[max(0, len(aside) - rule.suspects) :], *protected}
    goes += [name for name in aside if name not in spared]
    gone, reasons = {*goes, *thinned.thins}, {**dict.fromkeys(aside, _ASIDE), **protected, **held}
    rows = tuple(
        Row(one, None if one.name in gone else reasons.get(one.name, _by(rule, one)),
            one.name in thinned.thins)
        for one in stored
    )  # fmt: skip
    left = [place for place, group in enumerate(groups) if group[0].name not in gone]
    latency = LogUniform.between(spacing[0], rule.horizon)
    excess_days, uncovered = excess(moments.ages[left][::-1], latency)
    return Plan(rows, tuple(goes), spacing, excess_days, uncovered, thinned.thins)


def _is_aside(one: Stored, rule: Rule) -> bool:
    """Whether it is none that the policy keeps; copies are left alone where nobody asks for any."""
    return not one.good and (not one.copy or (rule.weights is not None and not one.sound))


def _by(rule: Rule, one: Stored) -> str:
    if not one.copy:
        return rule.policy
    return "weights alone" if rule.weights is None else f"weights alone, {rule.policy}"
