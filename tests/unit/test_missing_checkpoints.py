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


def made_run(run: Path) -> Path:
    """Checkpoints of steps 2, 4 and 6; a weight changes between steps 2 and 4."""
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    return run


def test_of_a_run_whose_first_checkpoint_is_gone(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    whole = call("run", run, "--json")
    with RunReader(run) as reader:
        assert recorded_steps(reader) == [2, 4, 6]
    assert (whole.code, whole.json["last_clean"], whole.json["first_corrupt"]) == (1, 2, 4)
    shutil.rmtree(run / "archive" / "step=000002")
    shutil.rmtree(run / "bisect")
    found = call("run", run, "--json")
    assert (found.code, found.json["exact"], found.json["first_corrupt"]) == (3, False, 4)
    assert any("missing: the checkpoint of step 2" in line for line in found.json["evidence"])
    assert (found.json["claim"], found.json["skipped"]) == ("transition", [])
    assert "untestable" not in call("run", run).out.splitlines()[0]


def test_a_session_by_hand_answers_with_a_range_too(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    shutil.rmtree(run / "archive" / "step=000004")
    assert call("start", run).code == 0
    assert call("good", run, "2").code == 0
    found = call("bad", run, "6", "--json")
    result = found.json["result"]
    assert (found.code, result["exact"], result["first_corrupt"]) == (3, False, 6)
    assert any("missing: the checkpoint of step 4" in line for line in result["evidence"])
    assert call("bad", run, "2").code in (1, 3)
    assert call("undo", run, "--json").json["result"]["exact"] is False
