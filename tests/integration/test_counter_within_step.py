"""A step counter that changes within a step: no digest shows it, an alert of the run does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import LAST, Fault, train

from forensics.index import index
from forensics.oracles.trace import TraceOracle
from forensics.recorded import from_trace
from forensics.result import Result
from forensics.verifying import Asked, Verification
from sdc_guard import RunReader
from sdc_guard.guard import RUN_VARIABLE

BEFORE = int(torch.tensor(12.0).view(torch.int32))  # as many updates were made before step 13
WRONG = int(torch.tensor(13.0).view(torch.int32)) ^ 1 << 22


class Again:
    """Replays in this process."""

    def inputs(self) -> dict[str, Any]:
        return {}

    def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
        os.environ[RUN_VARIABLE] = str(target)
        try:
            return train(target, until, resume=checkpoint.path)
        finally:
            del os.environ[RUN_VARIABLE]


def verified(run: Path, start: int | None = None) -> Result:
    with RunReader(run) as reader:
        wanted = Asked(start=start)
        plan = Verification.of(reader, index(run), wanted, lambda line: None)
    return plan.result(Again(), lambda line: None)


@pytest.mark.parametrize("start", [None, 5])
def test_verify_names_step_and_bits(tmp_path: Path, start: int | None) -> None:
    run = train(tmp_path, LAST, Fault("counted", 13, "1.weight", bit=22))
    with RunReader(run) as reader:
        oracle = TraceOracle(reader)
        judged = {one.step: oracle.judge(one) for one in index(run)}
    assert [judged[step].verdict for step in (5, 10, 15, 20)] == ["clean"] * 2 + ["corrupt"] * 2
    text = "the step counter of 1.weight changed within step 13, as no update changes it"
    assert judged[15].reason == text
    found = verified(run, start)
    assert (found.last_clean, found.first_corrupt, found.exact, found.proven) == (
        12,
        13,
        True,
        True,
    )
    assert (found.kind, found.rank) == ("optimizer update", 0)
    (tensor,) = found.tensors
    assert tensor.change is not None
    assert (tensor.kind, tensor.name) == ("step", "1.weight")
    assert (tensor.change.before, tensor.change.after) == (BEFORE, WRONG)
    assert found.evidence[0] == text
    assert "the first update that replays to other bits is that of step 14" in found.evidence


def test_before_the_first_checkpoint_the_record_names_it(tmp_path: Path) -> None:
    run = train(tmp_path, LAST, Fault("counted", 4, "1.weight", bit=22))  # 4 → 6
    with RunReader(run) as reader:
        found = from_trace(reader)
    assert found is not None
    assert (found.last_clean, found.first_corrupt, found.exact) == (3, 4, True)
    assert "not replayed: no clean checkpoint is before it" in found.evidence


def test_what_differs_before_is_not_its_consequence(tmp_path: Path) -> None:
    run = train(tmp_path, LAST, Fault("counted", 13, "1.weight", bit=22))
    _earlier_fault(run)
    found = verified(run, 5)
    assert (found.first_corrupt, found.proven, found.kind) == (8, True, "activation")


def _earlier_fault(run: Path) -> None:
    """Another loss of step 8 in the record."""
    import shutil

    import pyarrow as pa
    import pyarrow.compute as pc

    from sdc_guard.store.segment_file import encode
    from sdc_guard.store.segments import rank_folder, segment_path

    with RunReader(run) as reader:
        rows = reader.arrow("SELECT * EXCLUDE (rank) FROM steps")
    at = pc.equal(rows["step"], 8)
    changed = pc.if_else(at, pa.scalar(9.0), rows["loss"])
    rows = rows.set_column(rows.schema.get_field_index("loss"), rows.schema.field("loss"), changed)
    place = rank_folder(run, "steps", 0)
    shutil.rmtree(place)
    place.mkdir()
    segment_path(place, 0).write_bytes(encode(rows))
