"""What the trace proves by itself, when there is no clean checkpoint to replay from."""

from __future__ import annotations

import json

from sdc_guard.digest import SingleChange
from sdc_guard.store.reader import RunReader

from .locate import LocatedTensor
from .oracles.trace import breaks
from .result import Result

_ALERTS = """
    SELECT detail->>'kind', name, detail FROM alerts JOIN layer_names USING (layer)
    WHERE step = $step AND detector = 'carried_digest'
"""


def from_trace(reader: RunReader) -> Result | None:
    """The first step whose state is not what the step before left behind, or None.

    Element and bits are those that the guard solved when it raised the alert. Without a replay
    the cause stays undetermined.
    """
    found = breaks(reader)
    if not found:
        return None
    step = found[0][0]
    dtypes = {layer.name: layer.dtype for layer in reader.run_file.layers}
    solved = {
        (kind, name): _change(detail) for kind, name, detail in reader.rows(_ALERTS, {"step": step})
    }
    tensors = tuple(
        LocatedTensor(kind, name, solved.get((kind, name)), dtypes[name])
        for at, kind, name in found
        if at == step
    )
    return Result(
        command="verify",
        last_clean=step - 1,
        first_corrupt=step,
        exact=True,
        proven=True,
        tensors=tensors,
        kind="state at rest",
        verdict="undetermined",
        evidence=(
            f"the digests after step {step - 1} and before step {step} differ",
            "not replayed: no clean checkpoint is before it",
        ),
    )


def _change(detail: str) -> SingleChange | None:
    content = json.loads(detail)
    if "index" not in content:
        return None
    return SingleChange(content["index"], int(content["before"], 16), int(content["after"], 16))
