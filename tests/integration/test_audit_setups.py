"""Audited steps in the set-ups that people train in: each repeats, or says why it is not run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import SETUPS, WIDTH, different, loss_fn, seed_everything, state_of
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from sdc_guard import Guard, RunReader

STEPS = 7


class Loop:
    """A loop that calls `model`, with the guard on what `given` makes of it."""

    def __init__(self, run: Path, audit: Any, **options: Any) -> None:
        seed_everything(1)
        self.run, self.audit, self.options = run, audit, options
        self.model: Any = SETUPS["dropout"]()
        self.called = self.guarded = self.model
        self.scaler: torch.amp.GradScaler | None = None
        self.zero: dict[str, Any] = {}
        self.zero_late = False

    def __call__(self, steps: int = STEPS) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        with Guard(
            self.guarded, optimizer, run=self.run, policy="record", audit=self.audit,
            audit_rate=1.0, scaler=self.scaler, **self.options,
        ) as guard:  # fmt: skip
            for step in range(steps):
                x = torch.randn(8, WIDTH)
                loss = loss_fn(self.called, x)
                if self.zero_late:
                    optimizer.zero_grad(**self.zero)
                if self.scaler is None:
                    loss.backward()
                    guard.observe(loss, x)
                    optimizer.step()
                else:
                    scaled = self.scaler.scale(loss)
                    (scaled * torch.inf if step == 3 else scaled).backward()
                    guard.observe(loss, x)
                    self.scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
                    self.scaler.step(optimizer)
                    self.scaler.update()
                if not self.zero_late:
                    optimizer.zero_grad(**self.zero)
            assert guard.health.errors == 0, guard.health.last_error
        return state_of(self.model, optimizer)


def audits(run: Path) -> list[dict[str, Any]]:
    with RunReader(run) as reader:
        rows = reader.rows("SELECT step, detail FROM events WHERE kind = 'audit' ORDER BY step")
    return [{"step": step, **json.loads(detail)} for step, detail in rows]


def verdicts(run: Path) -> Counter[str]:
    return Counter(one["verdict"] for one in audits(run))


@pytest.mark.parametrize("late", [False, True], ids=["after", "before backward"])
@pytest.mark.parametrize("to_none", [False, True])
def test_wherever_gradients_are_zeroed(tmp_path: Path, late: bool, to_none: bool) -> None:
    loop = Loop(tmp_path, loss_fn)
    loop.zero, loop.zero_late = {"set_to_none": to_none}, late
    loop()
    assert verdicts(tmp_path) == {"sound": STEPS - 1}


@pytest.mark.parametrize("to_none", [False, True])
def test_a_gradient_of_minus_zero(tmp_path: Path, to_none: bool) -> None:
    # added to a zero it loses its sign, taken as it comes it keeps it
    class Product(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x

    model = Product(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.tensor([[1.0, -0.0]])

    def audit(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=audit, audit_rate=1.0
    ) as guard:
        for _ in range(5):
            loss = audit(model, x)
            loss.backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    assert verdicts(tmp_path) == {"sound": 4}


def test_a_loss_scale_is_not_the_audit_functions_business(tmp_path: Path) -> None:
    states = []
    for audit in (None, loss_fn):
        loop = Loop(tmp_path / str(audit is None), audit)
        loop.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        states.append(loop())
    assert different(*states) == []
    # step 3 is left out by the scaler: nobody applies it; the next one is not prepared
    assert verdicts(tmp_path / "False")["sound"] >= STEPS - 3
    with RunReader(tmp_path / "False") as reader:
        assert reader.rows("SELECT * FROM alerts WHERE detector = 'step_audit'") == []


def test_a_compiled_model_is_run_again_compiled(tmp_path: Path) -> None:
    states, graphs = [], []
    for audit in (None, loss_fn):
        torch._dynamo.reset()
        counted = CompileCounterWithBackend("aot_eager")
        loop = Loop(tmp_path / str(audit is None), audit)
        loop.called = loop.guarded = torch.compile(loop.model, backend=counted)
        states.append(loop())
        graphs.append(counted.frame_count)
    assert different(*states) == []
    assert graphs[0] == graphs[1]
    assert verdicts(tmp_path / "False") == {"sound": STEPS - 1}


def test_a_model_compiled_beside_the_guards_has_no_graph_break(tmp_path: Path) -> None:
    torch._dynamo.reset()
    loop = Loop(tmp_path, loss_fn)
    loop.called = torch.compile(loop.model, backend="aot_eager", fullgraph=True)
    loop()
    (one,) = audits(tmp_path)
    assert one["verdict"] == "not comparable"
    assert "give the Guard the module that the script calls" in one["reason"]


def test_an_alert_that_comes_late_has_the_next_step_run_again(tmp_path: Path) -> None:
    seed_everything(1)
    model = SETUPS["dropout"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=loss_fn, audit_rate=1e-9
    ) as guard:
        for step in range(12):
            x = torch.randn(8, WIDTH)
            if step == 8:
                x.fill_(torch.inf)
            loss = loss_fn(model, x)
            if step == 8:
                loss = loss * 0  # NaN in the loss, and none in the weights
            (loss if step != 8 else torch.nan_to_num(loss) + 0 * loss_fn(model, x * 0)).backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert [one["step"] for one in audits(tmp_path) if one["step"] > 4] == [9]


def test_without_an_audit_function_nothing_hooks_the_model(tmp_path: Path) -> None:
    model = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=tmp_path):
        assert model._forward_pre_hooks == {}
