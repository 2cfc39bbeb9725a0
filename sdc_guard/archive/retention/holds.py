"""What is never deleted, whatever the policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...detect.incidents import QUIET_STEPS
from .stored import Archive, OpenIncident, Stored

GRACE: Final = 86400.0  # seconds in which an untested checkpoint may still be tested
NO_CLEAN: Final = "there is no clean checkpoint"


def in_order(stored: Sequence[Stored]) -> list[Stored]:
    """Oldest first, as `restore.checkpoints` has them: by step, attempt and time."""
    return sorted(stored, key=lambda one: (one.step, one.attempt, one.created, one.name))


def still_open(archive: Archive) -> list[OpenIncident]:
    """The incidents that count as open.

    A statistic's incident closes after fifty quiet steps. Where its attempt ended before, nothing
    closes it: it is over once a later attempt saved a clean checkpoint fifty steps after it.
    """
    return [
        one
        for one in archive.incidents
        if one.proven
        or not any(
            kept.good and kept.attempt > one.attempt and kept.trace_step >= one.last + QUIET_STEPS
            for kept in archive.stored
        )
    ]


def holds(archive: Archive, now: float, grace: float = GRACE) -> dict[str, str]:
    """Why a checkpoint must stay, by its name.

    Args:
        archive: as it is.
        now: seconds since the epoch.
        grace: seconds.
    """
    stored = in_order(archive.stored)
    good = [one for one in stored if one.good]
    obstacles = archive.obstacles or (() if good else (NO_CLEAN,))
    if obstacles:
        return {one.name: obstacles[0] for one in stored}
    held: dict[str, str] = {}
    for one in stored:
        why = _own_reason(one, archive, now, grace)
        if why:
            held[one.name] = why
    for name, why in _of_incidents(archive, stored, good).items():
        held.setdefault(name, why)
    return held


def ends(archive: Archive) -> dict[str, str]:
    """The newest clean one and the one of LATEST: they stay, and count."""
    good = [one for one in in_order(archive.stored) if one.good]
    found = {} if archive.latest is None else {archive.latest: "LATEST points to it"}
    return found | ({good[-1].name: "the newest clean one"} if good else {})


def _own_reason(one: Stored, archive: Archive, now: float, grace: float) -> str:
    if one.unknown:
        return f"not understood: {one.unknown}"
    if one.name in archive.pins:
        return "pinned"
    for span in archive.spans:
        if span.first <= one.step <= span.last:
            return span.why
    if one.status == "untested" and now - one.created < grace:
        return "untested, and young"
    return ""


def _of_incidents(
    archive: Archive, stored: Sequence[Stored], good: Sequence[Stored]
) -> dict[str, str]:
    """The last clean one before an open incident, all after it, and all evidence."""
    opened = min((one.opened for one in still_open(archive)), default=None)
    if opened is None:
        return {}
    before = [one.trace_step for one in good if one.trace_step < opened]
    first = max(before, default=min((one.trace_step for one in stored), default=0))
    why = f"the incident of step {opened} is open"
    evidence = [one for one in stored if not (one.good or one.copy) or one.trace_step >= first]
    return {one.name: why for one in evidence}
