"""Steps run again in real trainings: what is found, and no trace of it."""

from __future__ import annotations

import copy
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import SETUPS, STEPS, WIDTH, different, loss_fn, seed_everything, state_of
from step_audits import Training, alerts, audit_of, audits, once, reasons, with_copies
from torch import nn

from sdc_guard import RunReader, TrainingHalted
from sdc_guard.ledger import read_ledger


@pytest.mark.parametrize(("name", "parts"), [*((name, 2) for name in SETUPS), ("noise", 1)])
def test_training_with_audits_is_bit_identical(tmp_path: Path, name: str, parts: int) -> None:
    seed_everything(1)
    model = SETUPS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        for _ in range(parts):
            loss_fn(model, torch.randn(8, WIDTH)).backward()
        optimizer.step()
        optimizer.zero_grad()
    plain = state_of(model, optimizer)
    training = Training(tmp_path, SETUPS[name])
    if parts == 2:
        with_copies(training, 1)
    training(parts=parts)
    assert different(plain, state_of(training.model, training.optimizer)) == []
    assert training.guard.health.errors == 0
    assert reasons(training.run) == []
    assert audits(training.run) == dict.fromkeys(range(1, STEPS), "sound")


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("policy", ["record", "halt"])
def test_an_activation_that_is_wrong_once_is_found_in_its_step(
    tmp_path: Path, parts: int, policy: str
) -> None:
    training = Training(tmp_path / "run", policy=policy, ledger=tmp_path / "ledger")
    once(training, 7)
    if policy == "halt":
        with pytest.raises(TrainingHalted, match="intermittent"):
            training(parts=parts)
    else:
        training(parts=parts)
    ((step, severity, detail),) = alerts(training.run)
    assert (step, severity, detail["verdict"]) == (7, "proven", "intermittent")
    assert detail["count"] == 4  # all that depend on the activation
    assert detail["loss"] == "differs"
    with RunReader(training.run) as reader:
        ((verdict,),) = reader.rows("SELECT verdict FROM incidents ORDER BY opened DESC LIMIT 1")
    assert verdict == "intermittent"
    strikes = [e for e in read_ledger(tmp_path / "ledger")[0] if e.kind == "strike"]
    assert [(e.verdict, e.run) for e in strikes] == [("intermittent", str(training.run))]


def test_a_gradient_that_is_wrong_once_leaves_the_loss_equal(tmp_path: Path) -> None:
    training = Training(tmp_path)
    left = iter(range(1))

    def spoil(gradient: torch.Tensor) -> torch.Tensor | None:
        if training.step != 7 or next(left, None) is None:
            return None
        wrong = gradient.clone()
        wrong.view(torch.int32)[0] ^= 1 << 12
        return wrong

    def watch(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(spoil)

    training.model.linear.register_forward_hook(watch)
    training()
    ((step, severity, detail),) = alerts(training.run)
    assert (step, severity, detail["verdict"]) == (7, "proven", "intermittent")
    assert (detail["loss"], detail["tensors"]) == ("equal", ["linear.weight", "linear.bias"])


def test_a_difference_before_anything_was_shown_accuses_nobody(tmp_path: Path) -> None:
    training = Training(tmp_path)
    once(training, 2)
    training()
    assert alerts(training.run) == []
    assert "before this training was shown to repeat" in reasons(training.run)[0]


def test_a_training_that_never_repeats_is_told_so_once(tmp_path: Path) -> None:
    numbers = iter(range(1, 1000))  # nothing can put an iterator back

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, 1)
            self.draw = Draw()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x + self.draw.noise(x))

    class Draw:
        def noise(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full(x.shape, 0.1 * next(numbers))

    training = Training(tmp_path, Own)()
    assert alerts(training.run) == []
    assert list(audits(training.run)) == [1, 2, 3]
    assert "use_deterministic_algorithms" in reasons(training.run)[-1]


def test_an_alert_has_its_step_run_again_under_a_policy_that_waits(tmp_path: Path) -> None:
    training = Training(tmp_path, policy="skip", audit_rate=1e-9)
    once(training, 9, times=0)

    def batch_of_garbage(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if step == 9:
            x.fill_(float("inf"))
        return loss_fn(model, x)

    training(loss_of=batch_of_garbage)
    assert audits(training.run)[9] == "undetermined"  # it repeats here; there is no elsewhere
    assert alerts(training.run) == []


def test_the_same_wrong_batch_is_data_or_software(tmp_path: Path) -> None:
    training = Training(tmp_path, policy="skip", audit_rate=0.01)
    with_copies(training, 1)

    def batch_of_garbage(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if step == 9:
            x.fill_(float("inf"))
        return loss_fn(model, x)

    training(loss_of=batch_of_garbage)
    ((step, severity, detail),) = alerts(training.run)
    assert (step, severity, detail["verdict"]) == (9, "suspect", "data or software")


def test_copies_and_pickles_of_the_model_record_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    copied = copy.deepcopy(training.model)
    torch.save(training.model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for model in (copied, loaded):
        loss_fn(model, torch.randn(8, WIDTH)).backward()
    assert audit_of(training.guard)._kept is None
    training()
    assert training.model._forward_pre_hooks == {}
    assert set(audits(training.run).values()) == {"sound"}


def test_a_strike_that_cannot_be_written_is_told_with_what_was_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = tmp_path / "file" / "ledger.jsonl"
    (tmp_path / "file").write_text("", encoding="utf-8")
    training = Training(tmp_path / "run", ledger=ledger)
    once(training, 7)
    training()
    assert [(step, severity) for step, severity, _ in alerts(training.run)] == [(7, "proven")]
    with RunReader(training.run) as reader:
        ((step, detail),) = reader.rows("SELECT step, detail FROM events WHERE kind = 'ledger'")
    assert step == 7
    assert detail.startswith("a strike against cpu of ")
    assert f"(step 7, intermittent) is not in the ledger {ledger}: " in detail
    assert any(detail in record.getMessage() for record in caplog.records)
    assert training.guard.health.errors == 2  # the strike, and at the end the count of audits
    assert f"audits of cpu of {socket.gethostname()} is not in" in training.guard.health.last_error
