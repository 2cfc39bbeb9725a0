"""A start into a folder that holds a run already says what counts no more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from sdc_guard import Guard


def train(run: Path, steps: range, save: tuple[int, ...] = ()) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, run=run, first_step=steps.start) as guard:
        for step in steps:
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in save:
                guard.checkpoint({"model": model}, step)


def test_what_a_start_supersedes_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    (tmp_path / "run" / "archive" / "step=other").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        train(run, range(4), save=(1, 2, 3))
        train(run, range(4, 6), save=(5,))  # goes on: nothing is superseded
        assert caplog.messages == []
        train(run, range(3, 4))
        (line,) = caplog.messages
        assert "starting at step 3 supersedes 2 checkpoints, of steps 3 to 5;" in line
        train(run, range(4, 5))
        assert "supersedes the checkpoint of step 5;" in caplog.messages[1]
        train(run, range(1))
    assert (
        "holds a run already; starting at step 0 supersedes it and 4 checkpoints, of steps 1"
        in (caplog.messages[2])
    )
    assert len(caplog.messages) == 3
