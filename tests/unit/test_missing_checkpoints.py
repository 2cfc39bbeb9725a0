"""A checkpoint that the trace records and the archive lacks makes an answer a range."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from session_archives import call

from forensics.missing import recorded_steps, with_missing
from forensics.result import Result
from sdc_guard import Guard, RunReader


def answer(low: int | None, high: int | None, **more: bool) -> Result:
    return Result("run", low, high, exact=high is not None, proven=True, **more)


@pytest.mark.parametrize(
    ("low", "high", "gone"),
    [
        (None, 40, "the checkpoint of step 20, which the run saved, is not"),
        (40, 80, "the checkpoint of step 60, which the run saved, is not"),
        (None, 80, "the checkpoints of steps 20, 60, which the run saved, are not"),
        (80, 100, ""),  # others that are missing are outside of it
        (100, None, ""),
    ],
)
def test_only_what_is_missing_inside_of_the_bracket_counts(
    low: int | None, high: int | None, gone: str
) -> None:
    found = with_missing(answer(low, high), [20, 40, 60, 80, 100], [40, 80, 100])
    assert found.exact == (high is not None and not gone)
    assert found.exit_code == (0 if high is None else 3 if gone else 1)
    assert found.proven  # that what is named is corrupt stays proven
    assert any(gone in line for line in found.evidence) if gone else not found.evidence


def test_of_a_run_whose_first_checkpoint_is_gone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tmp_path / "run"
    with Guard(model, optimizer, run=run, first_step=1, digest_budget=None) as guard:
        for step in range(1, 7):
            model(torch.randn(4, 6)).square().mean().backward()
            if step == 3:
                with torch.no_grad():
                    model.weight.view(torch.int32)[1, 2] ^= 1 << 20
            optimizer.step()
            optimizer.zero_grad()
            if step % 2 == 0:
                guard.checkpoint({"model": model, "optimizer": optimizer}, step)
    whole = call("run", run, "--json")
    with RunReader(run) as reader:
        assert recorded_steps(reader) == [2, 4, 6]
    assert (whole.code, whole.json["last_clean"], whole.json["first_corrupt"]) == (1, 2, 4)
    shutil.rmtree(run / "archive" / "step=000002")
    shutil.rmtree(run / "bisect")
    found = call("run", run, "--json")
    assert (found.code, found.json["exact"], found.json["first_corrupt"]) == (3, False, 4)
    assert any("missing: the checkpoint of step 2" in line for line in found.json["evidence"])
