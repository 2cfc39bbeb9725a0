"""Compiled trainings, and what of them cannot be seen."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest
import torch
from training_parts import (
    attach,
    batches,
    equal,
    loss_of,
    net,
    norms,
    recorded,
    same_bits,
    sound,
    train,
)


@pytest.mark.parametrize("when", ["before", "after"])
def test_setups_compile(tmp_path: Path, when: str) -> None:
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(4)
    if when == "after":
        loss_of(compiled, data[0]).backward()
        optimizer.zero_grad()
    guard = attach(compiled, optimizer, tmp_path)
    expected = []
    for batch in data:
        loss = loss_of(compiled, batch)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)  # and the names are those of the model, not _orig_mod's
    sound(guard)


def test_setups_compiled_autograd_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected = []
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "sdc_guard"):
        warnings.simplefilter("ignore")  # its own
        for batch in batches(3):
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss = loss_of(model, batch)
                loss.backward()
            expected.append(norms(model))
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    assert [r.getMessage() for r in caplog.records if "gradients are read at the" in r.getMessage()]


def test_setups_cuda_graph_capture_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    monkeypatch.setattr("sdc_guard.guarded_steps.capturing", lambda: True)
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        train(model, optimizer, batches(3), guard)
    guard.close()
    told = [r.getMessage() for r in caplog.records if "CUDA graph" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo's own
def test_setups_compiled_optimizer_step(tmp_path: Path) -> None:
    model, twin = net(), net()
    data = batches(3)
    expected = []
    for one, recording in ((model, True), (twin, False)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        guard = attach(one, optimizer, tmp_path) if recording else None
        step = torch.compile(optimizer.step, backend="eager")
        for batch in data:
            loss_of(one, batch).backward()
            if recording:
                expected.append(norms(one))
            step()
            optimizer.zero_grad()
        if guard:
            guard.close()
            sound(guard)
    equal(recorded(tmp_path), expected)
    same_bits(model, twin)
