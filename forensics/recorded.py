"""What the trace proves by itself, when there is no clean checkpoint to replay from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sdc_guard.digest import SingleChange
from sdc_guard.store.trace_reader import TraceReader

from .chain import all_breaks
from .counter_breaks import CounterBreak, counter_breaks, counter_result
from .locate import LocatedTensor
from .result import Result
from .watched import Watch, percent

_ALERTS = """
    SELECT detail->>'kind', name, detail FROM alerts JOIN layer_names USING (layer)
    WHERE step = $step AND detector = 'carried_digest'
"""
# a step of a process that was killed may have its row and not what it left
_LAST = """
    SELECT max(step) FROM steps WHERE step IN (SELECT step FROM digests WHERE phase = 'after')
"""


def last_recorded(reader: TraceReader) -> int | None:
    """The last step whose result is recorded, or None."""
    step: int | None = reader.rows(_LAST)[0][0]
    return step


def from_trace(reader: TraceReader) -> Result | None:
    """The first step whose state is not what the step before left behind, or None.

    Element and bits are those that the guard solved when it raised the alert. Without a replay
    the cause stays undetermined, and where a part of the state was watched only, so does whether
    it was the first.
    """
    found = [item for item in all_breaks(reader) if item.within]
    counter = next(iter(counter_breaks(reader)), None)
    if counter is not None and not (found and found[0].step <= counter.step):
        return _of_counter(reader, counter)
    if not found:
        return None
    step = found[0].step
    dtypes = _dtypes(reader)
    solved = solved_at(reader, step)
    tensors = tuple(
        solved.get((x.kind, x.layer)) or LocatedTensor(x.kind, x.layer, None, dtypes[x.layer])
        for x in found
        if x.step == step
    )
    share = Watch(reader).watched(step).share
    evidence = [f"the digests after step {step - 1} and before step {step} differ"]
    if share < 1:
        text = f"{percent(share)} of the state's transitions up to it were compared"
        evidence.append(f"{text}: a fault before it may have gone unseen")
    return Result(
        command="verify",
        last_clean=step - 1 if share == 1 else None,
        first_corrupt=step,
        exact=share == 1,
        proven=True,
        tensors=tensors,
        kind="state at rest",
        verdict="undetermined",
        evidence=(*evidence, "not replayed: no clean checkpoint is before it"),
        watched=share,
    )


def _of_counter(reader: TraceReader, counter: CounterBreak) -> Result:
    """The answer where a step counter that changed within a step is the first proof."""
    result = counter_result(reader, counter)
    share = Watch(reader).watched(counter.step).share
    evidence = [*result.evidence]
    if share < 1:
        text = f"{percent(share)} of the state's transitions up to it were compared"
        evidence.append(f"{text}: a fault before it may have gone unseen")
    return replace(
        result,
        last_clean=result.last_clean if share == 1 else None,
        exact=result.exact and share == 1,
        evidence=(*evidence, "not replayed: no clean checkpoint is before it"),
        watched=share,
    )


def solved_at(reader: TraceReader, step: int) -> dict[tuple[str, str], LocatedTensor]:
    """What the guard itself solved of state that `step` found changed, by kind and layer."""
    dtypes = _dtypes(reader)
    details = {
        (kind, name): json.loads(detail)
        for kind, name, detail in reader.rows(_ALERTS, {"step": step})
        if name in dtypes
    }
    return {
        (kind, name): LocatedTensor(kind, name, _change(detail), detail.get("dtype", dtypes[name]))
        for (kind, name), detail in details.items()
    }


def _dtypes(reader: TraceReader) -> dict[str, str]:
    return {layer.name: layer.dtype for layer in reader.run_file.named}


def _change(content: dict[str, Any]) -> SingleChange | None:
    if "index" not in content:
        return None
    return SingleChange(content["index"], int(content["before"], 16), int(content["after"], 16))
