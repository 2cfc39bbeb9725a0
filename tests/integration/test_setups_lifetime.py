"""Copies, processes, attaching and detaching, and the guard's own errors."""

from __future__ import annotations

import copy
import io
import logging
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import (
    attach,
    batches,
    net,
    rows,
    same_bits,
    sound,
    train,
)

from sdc_guard import Guard


def test_setups_deepcopy_pickle_and_save_record_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    model.guard = guard  # as a trainer that keeps it
    train(model, optimizer, batches(2), guard)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        same_bits(model, other)
        its_own = copy.deepcopy(optimizer)
        its_own.param_groups[0]["params"] = list(other.parameters())
        its_own.state.clear()
        train(other, its_own, batches(2), other.guard)
    assert guard.step == 2
    guard.close()
    assert rows(tmp_path, "SELECT count(*) FROM steps") == [(2,)]
    sound(guard)


def _in_a_fork(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    train(model, optimizer, batches(2), guard)
    assert guard.step == 2  # it did not take part
    guard.close()


def _in_a_spawn(model: nn.Module) -> None:
    train(model, torch.optim.AdamW(model.parameters()), batches(2))


def test_setups_other_processes_record_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    train(model, optimizer, batches(2), guard)
    fork = multiprocessing.get_context("fork").Process(
        target=_in_a_fork, args=(model, optimizer, guard)
    )
    spawn = multiprocessing.get_context("spawn").Process(target=_in_a_spawn, args=(model,))
    for process in (fork, spawn):
        process.start()
        process.join(100)
        assert process.exitcode == 0
    train(model, optimizer, batches(1), guard)
    guard.close()
    assert rows(tmp_path, "SELECT step FROM steps ORDER BY step") == [(0,), (1,), (2,)]
    sound(guard)


def test_setups_attach_and_detach_three_times(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for first in (0, 2, 4):
        guard = attach(model, optimizer, tmp_path, first_step=first)
        train(model, optimizer, batches(2), guard)
        guard.close()
        guard.close()
        sound(guard)
    assert rows(tmp_path, "SELECT step FROM steps ORDER BY step") == [(n,) for n in range(6)]
    assert rows(
        tmp_path, "SELECT max(n) FROM (SELECT count(*) AS n FROM layers GROUP BY step)"
    ) == [(4,)]
    train(model, optimizer, batches(1))
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks


def test_setups_attach_again_without_detaching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A notebook's cell that runs three times."""
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        for number in range(3):
            model = net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            guard = attach(model, optimizer, tmp_path / "run")
            train(model, optimizer, batches(2), guard)
            again = attach(model, optimizer, tmp_path / f"other {number}")
            train(model, optimizer, batches(1), again)
            assert guard.step == 2
    again.close()
    assert rows(tmp_path / "run", "SELECT step FROM steps ORDER BY step") == [(0,), (1,)]
    assert any("an earlier guard" in record.getMessage() for record in caplog.records)


def test_setups_a_hook_of_our_own_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, digest_budget=None)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    train(model, optimizer, batches(1), guard)
    for name in (
        "sdc_guard.signals.gradient_table.sums_of_many",
        "sdc_guard.collector.digest_of",
        "sdc_guard.collector.digest_state",
        "sdc_guard.recorder.layer_rows",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, broken)
            train(model, optimizer, batches(1), guard)
    train(model, optimizer, batches(2), guard)
    guard.close()
    train(twin, torch.optim.AdamW(twin.parameters(), lr=0.01), [*batches(1) * 5, *batches(2)])
    same_bits(model, twin)
    assert guard.health.errors >= 4
    assert "broken on purpose" in guard.health.last_error
    assert (6,) in rows(tmp_path, "SELECT step FROM steps")


def test_setups_a_working_folder_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, Path("runs/a"))
    train(model, optimizer, batches(2), guard)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = guard.checkpoint({"model": model}, 1)
    guard.close()
    assert folder is not None
    assert folder.parent == tmp_path / "runs" / "a" / "archive"
    assert rows(tmp_path / "runs" / "a", "SELECT count(*) FROM steps") == [(2,)]
    sound(guard)


def test_setups_after_close_nothing_is_recorded_or_hooked(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    train(model, optimizer, batches(2), guard)
    guard.close()
    guard.refresh()
    guard.observe(1.0)
    assert guard.checkpoint({"model": model}, 1) is None
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not (tmp_path / "archive").exists()
    sound(guard)
