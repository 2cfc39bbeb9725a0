"""What the trace proves by itself, when there is no clean checkpoint to replay from."""

from __future__ import annotations

import json

from sdc_guard.digest import SingleChange
from sdc_guard.store.trace_reader import TraceReader

from .chain import all_breaks
from .locate import LocatedTensor
from .result import Result
from .watched import Watch, percent

_ALERTS = """
    SELECT detail->>'kind', name, detail FROM alerts JOIN layer_names USING (layer)
    WHERE step = $step AND detector = 'carried_digest'
"""


def from_trace(reader: TraceReader) -> Result | None:
    """The first step whose state is not what the step before left behind, or None.

    Element and bits are those that the guard solved when it raised the alert. Without a replay
    the cause stays undetermined, and where a part of the state was watched only, so does whether
    it was the first.
    """
    found = [item for item in all_breaks(reader) if item.within]
    if not found:
        return None
    step = found[0].step
    dtypes = {layer.name: layer.dtype for layer in reader.run_file.named}
    solved = {
        (kind, name): _change(detail) for kind, name, detail in reader.rows(_ALERTS, {"step": step})
    }
    tensors = tuple(
        LocatedTensor(x.kind, x.layer, solved.get((x.kind, x.layer)), dtypes[x.layer])
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


def _change(detail: str) -> SingleChange | None:
    content = json.loads(detail)
    if "index" not in content:
        return None
    return SingleChange(content["index"], int(content["before"], 16), int(content["after"], 16))
