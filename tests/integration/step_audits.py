"""Trainings whose every step is run again, and what their runs say of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stateful_setups import SETUPS, STEPS, WIDTH, loss_fn, seed_everything
from torch import nn

from sdc_guard import Guard, RunReader
from sdc_guard.checks.audit.elsewhere import Places
from sdc_guard.checks.audit.step_audit import StepAudit

Spoil = Callable[[int, nn.Module], None]


class Training:
    """A loop with a guard that audits every step; what it does otherwise is given."""

    def __init__(self, run: Path, make: Callable[[], nn.Module] | None = None, **more: Any) -> None:
        seed_everything(1)
        self.model = (make or SETUPS["dropout"])()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        options = {"policy": "record", "audit": loss_fn, "audit_rate": 1.0, **more}
        self.guard = Guard(self.model, self.optimizer, run=run, **options)
        self.run = run

    def __call__(
        self,
        steps: int = STEPS,
        *,
        parts: int = 1,
        before_step: Spoil = lambda step, model: None,
        loss_of: Callable[[int, nn.Module, torch.Tensor], torch.Tensor] | None = None,
    ) -> Training:
        with self.guard:
            for step in range(steps):
                self.step = step
                for _ in range(parts):
                    x = torch.randn(8, WIDTH)
                    loss = (
                        loss_fn(self.model, x) if loss_of is None else loss_of(step, self.model, x)
                    )
                    loss.backward()
                    self.guard.observe(loss, x)
                before_step(step, self.model)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self


def audits(run: Path) -> dict[int, str]:
    with RunReader(run) as reader:
        rows = reader.rows("SELECT step, detail FROM events WHERE kind = 'audit'")
    return {step: json.loads(detail)["verdict"] for step, detail in rows}


def reasons(run: Path) -> list[str]:
    """Why steps were not comparable."""
    with RunReader(run) as reader:
        rows = reader.rows("SELECT detail FROM events WHERE kind = 'audit' ORDER BY step")
    found = [json.loads(detail) for (detail,) in rows]
    return [one["reason"] for one in found if one["verdict"] == "not comparable"]


def alerts(run: Path) -> list[tuple[int, str, dict[str, Any]]]:
    with RunReader(run) as reader:
        rows = reader.rows(
            "SELECT step, severity, detail FROM alerts WHERE detector = 'step_audit'"
        )
    return [(step, severity, json.loads(detail)) for step, severity, detail in rows]


def once(training: Training, at: int, times: int = 1) -> None:
    """One activation of the first layer is wrong at a step; a replay of it is right."""
    left = iter(range(times))  # nothing can put an iterator back

    def spoil(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        if training.step != at or next(left, None) is None:
            return None
        wrong = output.detach().clone()
        wrong.view(torch.int32)[0] ^= 1 << 12  # a bit of the mantissa; dropout leaves some of them
        return output + (wrong - output.detach())

    next(m for m in training.model.modules() if isinstance(m, nn.Linear)).register_forward_hook(
        spoil
    )


def audit_of(guard: Guard) -> StepAudit:
    (audit,) = (check for check in guard._checks._checks if isinstance(check, StepAudit))
    return audit


def with_copies(training: Training, places: int) -> None:
    """Let a training's audits use copies of its model as other devices."""
    run = audit_of(training.guard)._run
    run._places = Places(run._subject, [torch.device("cpu")] * places)
