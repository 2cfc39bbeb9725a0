"""A damaged file proven by checksums, and what the values of the other checkpoints look like."""

from __future__ import annotations

from dataclasses import replace

from .result import Result
from .two_findings import State, told_apart


def with_values(damaged: Result, values: Result) -> Result:
    """The answer by checksums, with what statistics say of the training as a second finding.

    Args:
        damaged: names a damaged file.
        values: of a search by statistics that passed over the damaged ones.
    """
    if values.first_corrupt is None:
        looked = {probe["step"] for probe in values.probes}
        count = f"{len(looked)} other {'checkpoint' if len(looked) == 1 else 'checkpoints'}"
        said = f"the values of {count} look as a training leaves them: that does not prove it sound"
        return replace(damaged, evidence=(*damaged.evidence, said))
    reason = next(
        str(probe["reason"])
        for probe in values.probes
        if probe["step"] == values.first_corrupt and probe["verdict"] == "corrupt"
    )
    state = State("corrupt", values.last_clean, values.first_corrupt, values.proven, reason)
    return replace(
        damaged,
        state=state,
        probes=(*damaged.probes, *values.probes),
        evidence=(*damaged.evidence, *told_apart(damaged.damaged_files[:1], state)),
    )
