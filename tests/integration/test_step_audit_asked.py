"""Steps that cannot be compared: what is said of it, and of the function given as audit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import SETUPS, WIDTH, loss_fn, seed_everything
from step_audits import Training, alerts, audits, reasons
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.ledger import read_ledger


def _halved(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = loss_fn(model, x)
    loss.register_hook(lambda gradient: gradient / 2)  # as (loss / 2).backward() does
    return loss


WRONG: dict[str, tuple[Any, Any, str]] = {
    "the audit's loss is another one": (
        lambda model, x: 2 * loss_fn(model, x), None,
        r"\(it gave (\S+), observe was given (\S+)\)"),
    "the script calls backward of another one": (
        loss_fn, _halved, r"\(it gave (\S+), and so did observe"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_audit_function_that_gives_another_loss_is_asked_about(
    tmp_path: Path, name: str
) -> None:
    audit, loss_of, losses = WRONG[name]
    training = Training(tmp_path / "run", audit=audit, ledger=tmp_path / "ledger")
    training(loss_of=loss_of)
    assert alerts(training.run) == []
    assert list(audits(training.run)) == [1, 2, 3]
    first, last = reasons(training.run)
    for reason in (first, last):
        assert "does audit return the loss whose backward() the script calls?" in reason
        assert "deterministic" not in reason
    assert "no step is audited any more" in last
    found = re.search(losses, first)
    assert found is not None
    if name == "the audit's loss is another one":
        assert float(found[1]) == pytest.approx(2 * float(found[2]), rel=1e-4)
    assert [e.kind for e in read_ledger(tmp_path / "ledger")[0]] == ["audits"]


def _one_argument(model: nn.Module) -> torch.Tensor:
    raise AssertionError("never called with one argument")


NO_LOSS: dict[str, tuple[Any, str]] = {
    "takes one argument": (_one_argument, "it raised TypeError: _one_argument() takes 1"),
    "raises": (lambda model, x: model(x["text"]), "it raised IndexError: "),
    "returns a number": (lambda model, x: loss_fn(model, x).item(), "it returned float, no tensor"),
    "returns each sample's loss": (
        lambda model, x: model(x).square(), "it returned a tensor of shape (8, 1), no scalar"),
    "returns a detached loss": (
        lambda model, x: loss_fn(model, x).detach(), "it returned a tensor without a gradient"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LOSS)
def test_an_audit_function_that_fails_is_named_as_what_fails(tmp_path: Path, name: str) -> None:
    audit, what = NO_LOSS[name]
    training = Training(tmp_path, audit=audit)()
    first, last = reasons(training.run)
    for reason in (first, last):
        assert reason.startswith(f"the function given as audit failed: {what}")
        assert "returns the scalar loss whose backward() the script calls" in reason
        assert "\n" not in reason
    assert last.endswith("; no step is audited any more")
    assert list(audits(training.run)) == [1, 3]  # given up at the third try
    assert training.guard.health.errors == 0
    assert alerts(training.run) == []


UNCOMPARABLE: dict[str, tuple[Callable[[Training], dict[str, Any]], str]] = {
    "a weight is written by the script": (
        lambda _: {"before_step": lambda step, model: _clamp(model)}, "the script wrote to"),
    "a weight is written past torch": (
        lambda _: {"before_step": lambda step, model: _write_data(model)}, "parameters changed"),
    "the batch is changed": (
        lambda _: {"loss_of": lambda step, model, x: _loss_and_change(model, x)},
        "changed a batch"),
    "the model is called once more": (
        lambda _: {"loss_of": lambda step, model, x: loss_fn(model, x) + 0 * loss_fn(model, x)},
        "called the model 2 times"),
    "the settings change": (
        lambda _: {"before_step": lambda step, model: torch.set_num_threads(1 + step % 2)},
        "settings changed"),
}  # fmt: skip


def _clamp(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).mul_(0.99)


def _write_data(model: nn.Module) -> None:
    next(model.parameters()).data.mul_(0.99)


def _loss_and_change(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = loss_fn(model, x)
    loss.register_hook(lambda _: None)
    x.data.view(-1).requires_grad_(False)
    _changed.append(x)
    return loss


_changed: list[torch.Tensor] = []


@pytest.mark.parametrize("name", UNCOMPARABLE)
def test_what_cannot_be_compared_is_said_and_accuses_nobody(tmp_path: Path, name: str) -> None:
    options, reason = UNCOMPARABLE[name]
    training = Training(tmp_path)
    given = options(training)
    if name == "the batch is changed":
        given["before_step"] = lambda step, model: _changed[-1].mul_(2)
    threads = torch.get_num_threads()
    try:
        training(**given)
    finally:
        torch.set_num_threads(threads)
    assert alerts(training.run) == []
    assert any(reason in said for said in reasons(training.run))
    assert len(set(reasons(training.run))) == len(reasons(training.run))


def test_a_closure_is_not_comparable(tmp_path: Path) -> None:
    seed_everything(1)
    model = SETUPS["dropout"]()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=loss_fn, audit_rate=1.0
    ) as guard:
        for _ in range(5):
            x = torch.randn(8, WIDTH)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_fn(model, x)
                loss.backward()
                guard.observe(loss, x)
                return loss

            optimizer.step(closure)
        assert guard.health.errors == 0
    with RunReader(tmp_path) as reader:
        rows = reader.rows("SELECT detail FROM events WHERE kind = 'audit'")
    assert len(rows) == 1
    assert "closure" in rows[0][0]
