"""Which checkpoints to try, in which order, and which are passed over. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import ArchiveIncomplete
from .candidates import Candidate

CONSENT = "--even-if-not-clean"


@dataclass(frozen=True)
class Passed:
    """A checkpoint that was not taken, and why, in a line."""

    candidate: Candidate
    why: str

    def line(self) -> str:
        """As a sentence."""
        step = "a checkpoint" if self.candidate.step < 0 else f"step {self.candidate.step}"
        return f"passed over {step}, {self.why}: {self.candidate.path}"


def newest_first(found: Sequence[Candidate]) -> Iterator[Candidate | Passed]:
    """The clean ones to try, newest first, and between them those that are passed over.

    Args:
        found: newest first.
    """
    for one in found:
        yield one if one.good else Passed(one, one.why)


def named(found: Sequence[Candidate], step: int, *, consent: bool) -> Candidate:
    """The one of a step: a clean one if there is one, the newest.

    Args:
        found: newest first.
        consent: whether one that is not clean will do.

    Raises:
        ArchiveIncomplete: there is none of that step, or none that may be taken.
    """
    there = [one for one in found if one.step == step]
    if not there:
        steps = sorted({one.step for one in found if one.step >= 0})
        near = ", ".join(map(str, sorted(steps, key=lambda have: abs(have - step))[:3]))
        raise ArchiveIncomplete(
            f"no checkpoint of step {step}", next_step=f"there are {near}" if near else ""
        )
    good = [one for one in there if one.good]
    whole = [one for one in there if not one.copy]
    if not whole:
        raise ArchiveIncomplete(
            f"of step {step} there are the weights alone, nothing resumes from it",
            where=str(there[0].path),
            next_step="name that with --checkpoint to have them",
        )
    return allowed((good or whole)[0], consent=consent)


def allowed(one: Candidate, *, consent: bool) -> Candidate:
    """The one that was asked for, if it is clean or consented to.

    Raises:
        ArchiveIncomplete: it is not, or nothing is recorded of it.
    """
    if one.status == "clean":  # a superseded one that is named is meant
        return one
    if one.status in ("incomplete", "gone"):
        raise ArchiveIncomplete(f"it cannot be restored, {one.why}", where=str(one.path))
    if not consent:
        raise ArchiveIncomplete(
            f"the checkpoint of step {one.step} is {one.why}",
            where=str(one.path),
            next_step=f"with {CONSENT} it is restored all the same",
        )
    return one
