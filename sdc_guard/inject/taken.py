"""A fault that an injector has taken: its number in the plan and what it is aimed at."""

from __future__ import annotations

from dataclasses import dataclass

from .fault import Fault


@dataclass
class Taken:
    """A fault in the plan.

    Attributes:
        number: in the plan, from 0.
        fault: as given.
        key: what tells it from others in the journal.
        added: number of the step that ran when it was added.
        target: name of the tensor or module; None where only the first step that meets it shows
            what there is.
        shared: whether all ranks draw the same: they hold parts of one tensor.
        done: the last step at which it was dealt with.
    """

    number: int
    fault: Fault
    key: str
    added: int = 0
    target: str | None = None
    shared: bool = False
    done: int | None = None


@dataclass(frozen=True)
class Missed:
    """A fault that was due and did not fire.

    Attributes:
        fault: its number in the plan.
        site, tensor: of the fault; None for a target that was left open to the end.
        step, rank: where it was due.
        reason: one clause.
    """

    fault: int
    site: str
    tensor: str | None
    step: int
    rank: int
    reason: str
