"""A damaged file proven by checksums, and what the values of the other checkpoints look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .reservations import of_transitions
from .result import Result
from .search import Verdict
from .search.verdicts import transitions
from .two_findings import State, told_apart

Change = dict[str, Any]


def with_values(damaged: Result, values: Result, all_judged: bool = False) -> Result:
    """The answer by checksums, with what statistics say of the training as a second finding.

    Args:
        damaged: names a damaged file.
        values: of a search by statistics that passed over the damaged ones.
        all_judged: whether both looked at every checkpoint.
    """
    both = replace(damaged, probes=(*damaged.probes, *values.probes))
    if values.first_corrupt is None:
        looked = {probe["step"] for probe in values.probes}
        count = f"{len(looked)} other {'checkpoint' if len(looked) == 1 else 'checkpoints'}"
        said = f"the values of {count} look as a training leaves them: that does not prove it sound"
        state = State("unknown", values.last_clean, reason=said)
        return replace(both, state=state, evidence=(*damaged.evidence, said))
    reason = next(
        str(probe["reason"])
        for probe in values.probes
        if probe["step"] == values.first_corrupt and probe["verdict"] == "corrupt"
    )
    state = State("corrupt", values.last_clean, values.first_corrupt, values.proven, reason)
    second = told_apart(damaged.damaged_files[:1], state, all_judged)
    both = replace(both, state=state, evidence=(*damaged.evidence, *second))
    return both if damaged.transitions is None else _every_change(both)


def _every_change(both: Result) -> Result:
    """The changes from checkpoint to checkpoint by both judges, in place of those by one."""
    changes = _changes(both.probes)
    alone = set(of_transitions(both.transitions))
    kept = tuple(line for line in both.evidence if line not in alone)
    return replace(both, transitions=changes, evidence=(*kept, *of_transitions(changes)))


def _changes(probes: Iterable[Mapping[str, Any]]) -> tuple[Change, ...]:
    """From step to step; corrupt is what either judge calls so."""
    worst: dict[int, Verdict] = {}
    for probe in probes:
        step, verdict = probe["step"], probe["verdict"]
        if worst.get(step) != "corrupt" and verdict != "untestable":
            worst[step] = verdict
    return tuple(
        {"from": one.start, "to": one.end, "verdicts": list(one.verdicts)}
        for one in transitions(worst)
    )
