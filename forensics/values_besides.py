"""A damaged file proven by checksums, and what the values of the other checkpoints look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .changes_seen import in_order, in_words
from .result import Result
from .two_findings import ALSO_DAMAGED, State, told_apart


def with_values(damaged: Result, values: Result, all_judged: bool = False) -> Result:
    """The answer by checksums, with what statistics say of the training as a second finding.

    Args:
        damaged: names a damaged file.
        values: of a search by statistics that passed over the damaged ones.
        all_judged: whether both looked at every checkpoint.
    """
    damaged = _with_files(damaged, values.damaged_files)
    both = replace(damaged, probes=(*damaged.probes, *values.probes))
    if values.first_corrupt is None or values.first_corrupt in values.trusted:
        looked = {probe["step"] for probe in values.probes if probe["verdict"] == "clean"}
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
    return both if damaged.transitions is None else _every_change(both, values)


def _every_change(both: Result, values: Result) -> Result:
    """The changes of files and of the state, in place of those of files alone."""
    changes = in_order((*(both.transitions or ()), *(values.transitions or ())))
    alone = set(in_words(both.transitions))
    kept = tuple(line for line in both.evidence if line not in alone)
    return replace(both, transitions=changes, evidence=(*kept, *in_words(changes)))


def _with_files(damaged: Result, more: Sequence[int]) -> Result:
    """The answer with the damaged files that the search of the values met, too."""
    if not {*more} - {*damaged.damaged_files}:
        return damaged
    files = tuple(sorted({*damaged.damaged_files, *more}))
    first = damaged.first_corrupt
    named = [step for step in files if step != first]
    known = [line for line in damaged.evidence if not line.startswith(ALSO_DAMAGED)]
    told = told_apart([files[0] if first is None else first, *named], State("unknown"))
    return replace(damaged, damaged_files=files, evidence=(*known, *told))
