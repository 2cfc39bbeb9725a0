"""Step counters that changed within a step: the alerts of the run prove them, and no digest does.

A counter is read before and after an update. What changes between two steps is a break of the chain
like any other; what an update cannot have made of it is only in the alert.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sdc_guard.digest import SingleChange
from sdc_guard.store.trace_reader import TraceReader

from .compare import StepDifference
from .locate import LocatedTensor
from .result import Result

_ALERTS = """
    SELECT step, rank, name, detail FROM alerts JOIN layer_names USING (layer)
    WHERE detector = 'step_counter' AND severity = 'proven' ORDER BY step, rank, layer
"""


@dataclass(frozen=True)
class CounterBreak:
    """A counter that changed within the `steps` steps up to `step`.

    Attributes:
        before, after: its bits at the two moments, as unsigned numbers.
    """

    step: int
    steps: int
    rank: int
    layer: str
    dtype: str
    before: int
    after: int

    @property
    def last_clean(self) -> int:
        """The step after which it was still right."""
        return self.step - self.steps

    @property
    def when(self) -> str:
        """In words."""
        if self.steps == 1:
            return f"within step {self.step}"
        return f"within the {self.steps} steps up to step {self.step}"

    @property
    def text(self) -> str:
        """What the record proves."""
        return f"the step counter of {self.layer} changed {self.when}, as no update changes it"


def counter_breaks(reader: TraceReader) -> list[CounterBreak]:
    """Those of a run, by step."""
    found = [_break(*row) for row in reader.rows(_ALERTS)]
    return [one for one in found if one is not None]


def is_consequence(found: StepDifference | None, counter: CounterBreak) -> bool:
    """Whether the first difference of a replay may follow from the counter's change."""
    if found is None or found.step > counter.step:
        return True
    if found.step <= counter.last_clean:
        return False
    first = found.step == counter.last_clean + 1
    computed = found.batch or found.lr or found.loss or found.gradients or found.before
    return not (first and computed) and not (found.batch or found.lr)


def counter_result(
    reader: TraceReader, counter: CounterBreak, found: StepDifference | None = None
) -> Result:
    """The answer where a counter's change comes first.

    Args:
        reader: of the run.
        counter: the change.
        found: the first difference of a replay; None for none, or without a replay.
    """
    step = counter.step if found is None else min(counter.step, found.step)
    same = [one for one in counter_breaks(reader) if one.step == counter.step]
    tensors = tuple(
        LocatedTensor("step", one.layer, SingleChange(0, one.before, one.after), one.dtype)
        for one in same
    )
    evidence = [counter.text]
    if found is not None:
        evidence.append(f"the first update that replays to other bits is that of step {found.step}")
    return Result(
        command="verify",
        last_clean=counter.last_clean,
        first_corrupt=step,
        exact=step == counter.last_clean + 1,
        proven=True,
        tensors=tensors,
        kind="optimizer update" if counter.steps == 1 else "undetermined",
        verdict="undetermined",
        rank=counter.rank if len({one.rank for one in same}) == 1 else None,
        evidence=tuple(evidence),
    )


def _break(step: int, rank: int, name: str, detail: str) -> CounterBreak | None:
    try:
        told: dict[str, Any] = json.loads(detail)
        before, after = (int(told[key], 16) for key in ("before", "after"))
        return CounterBreak(step, int(told["steps"]), rank, name, told["dtype"], before, after)
    except (ValueError, KeyError, TypeError):
        return None  # a damaged record proves nothing
