"""Steps run again in real trainings: what is found, what is not comparable, and no trace of it."""

from __future__ import annotations

import copy
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stateful_setups import SETUPS, STEPS, WIDTH, different, loss_fn, seed_everything, state_of
from torch import nn

from sdc_guard import Guard, RunReader, TrainingHalted
from sdc_guard.checks.audit.elsewhere import Places
from sdc_guard.checks.audit.step_audit import StepAudit
from sdc_guard.ledger import read_ledger

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


@pytest.mark.parametrize("copies", [0, 1])
def test_a_batch_whose_gradients_are_dropped_does_not_count(tmp_path: Path, copies: int) -> None:
    training = Training(tmp_path, SETUPS["frozen batch norm"])
    if copies:
        with_copies(training, copies)
    calls = 0

    def drop(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if step >= 8 and calls % 3 != 1:  # the second and the third batch, of three
            training.optimizer.zero_grad()
        return loss_fn(model, x)

    training(parts=3, loss_of=drop)
    assert reasons(training.run) == []
    assert audits(training.run) == dict.fromkeys(range(1, STEPS), "sound")


@pytest.mark.parametrize("how", ["after the forward", "in place", "replaced"])
def test_gradients_changed_between_micro_batches_accuse_nobody(tmp_path: Path, how: str) -> None:
    training = Training(tmp_path)

    def change(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = loss_fn(model, x) if how == "after the forward" else None
        if step == 8 and how == "replaced":
            for parameter in model.parameters():
                parameter.grad = None if parameter.grad is None else parameter.grad * 0.5
        elif step == 8:
            training.optimizer.zero_grad(set_to_none=how != "in place")
        return loss_fn(model, x) if loss is None else loss

    training(parts=2, loss_of=change)
    assert alerts(training.run) == []
    assert audits(training.run)[8] == "not comparable"
    said = "wrote to the gradients" if how == "in place" else "of an earlier backward of this step"
    assert said in reasons(training.run)[0]


def test_a_counter_outside_of_the_model_is_put_back(tmp_path: Path) -> None:
    calls = 0

    def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_fn(model, x) / calls

    training = Training(tmp_path, audit=counted)(loss_of=lambda step, model, x: counted(model, x))
    assert calls == STEPS
    assert set(audits(training.run).values()) == {"sound"}


@pytest.mark.parametrize("loader_draws", [False, True])
def test_noise_that_the_loss_function_draws_first_is_drawn_again(
    tmp_path: Path, loader_draws: bool
) -> None:
    def noisy(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return loss_fn(model, x + torch.rand(()) * torch.randn_like(x))

    seed_everything(5)
    batches = torch.randn(STEPS, 2, 8, WIDTH)
    model = SETUPS["dropout"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=noisy, audit_rate=1.0
    ) as guard:
        for pair in batches:
            for x in pair:
                if loader_draws:
                    torch.rand(())
                loss = noisy(model, x)
                loss.backward()
                guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad()
    assert alerts(tmp_path) == []
    if loader_draws:
        assert "something else drew" in reasons(tmp_path)[0]
    else:
        assert audits(tmp_path) == dict.fromkeys(range(1, STEPS), "sound")


def test_state_that_a_script_keeps_in_containers_is_put_back(tmp_path: Path) -> None:
    state = {"calls": 0}

    def counted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        return loss_fn(model, x) / state["calls"]

    training = Training(tmp_path, audit=counted)
    training(parts=2, loss_of=lambda step, model, x: counted(model, x))
    assert state == {"calls": 2 * STEPS}
    assert set(audits(training.run).values()) == {"sound"}


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


def audit_of(guard: Guard) -> StepAudit:
    (audit,) = (check for check in guard._checks._checks if isinstance(check, StepAudit))
    return audit


def with_copies(training: Training, places: int) -> None:
    """Let a training's audits use copies of its model as other devices."""
    run = audit_of(training.guard)._run
    run._places = Places(run._subject, [torch.device("cpu")] * places)


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


@pytest.mark.parametrize("to_none", [True, False])
def test_parameters_frozen_for_a_while_are_left_out_of_the_comparison(
    tmp_path: Path, to_none: bool
) -> None:
    seed_everything(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Guard(
        model, optimizer, run=tmp_path, policy="record", audit=loss_fn, audit_rate=1.0
    ) as guard:
        for step in range(18):
            if step in (6, 12):
                model[0].requires_grad_(step == 12)
            x = torch.randn(8, WIDTH)
            loss = loss_fn(model, x)
            loss.backward()
            guard.observe(loss, x)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        assert guard.health.errors == 0
    assert reasons(tmp_path) == []
    assert audits(tmp_path) == dict.fromkeys(range(1, 18), "sound")


@pytest.mark.parametrize("parts", [1, 2])
def test_parameters_frozen_within_a_step_accuse_nobody(tmp_path: Path, parts: int) -> None:
    training = Training(tmp_path)
    calls = 0

    def freeze(step: int, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        frozen = next(model.parameters())
        frozen.requires_grad_(step != 8 or calls % 2 == 1 < parts)
        loss = loss_fn(model, x)
        frozen.requires_grad_(True)
        return loss

    training(parts=parts, loss_of=freeze)
    assert alerts(training.run) == []
    assert reasons(training.run) == ["the script froze or unfroze parameters during the step"]


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
