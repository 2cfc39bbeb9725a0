"""Step counters of optimizers: a flipped bit is named at once, and no set-up is accused."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_parts import attach, batches, loss_of, net, rows

from sdc_guard import Alert, Guard, TrainingHalted
from sdc_guard.archive.manifest import Manifest
from sdc_guard.inject.injector import flip_bit
from sdc_guard.signals.rotation import Rotation

STEPS, FAULT = 8, 5
HEALTHY = 80  # four times the longest of what the trainings repeat
NAME = "2.weight"
Make = Callable[[Any], torch.optim.Optimizer]
COUNTING: dict[str, Make] = {
    "AdamW": torch.optim.AdamW,
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adagrad": torch.optim.Adagrad,
}
DETECTORS = {"carried_digest", "step_counter"}


def train(
    guard: Guard | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = STEPS,
    at_step: Callable[[int], object] = lambda step: None,
) -> None:
    for step, batch in enumerate(batches(steps)):
        at_step(step)
        loss = loss_of(model, batch)
        loss.backward()
        if guard is not None:
            guard.observe(loss, batch)
        with suppress(TrainingHalted):
            optimizer.step()
        optimizer.zero_grad()


def counter(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    found: torch.Tensor = optimizer.state[model.get_parameter(NAME)]["step"]
    return found


def flip(model: nn.Module, optimizer: torch.optim.Optimizer, bit: int) -> Callable[[int], object]:
    def at_step(step: int) -> None:
        if step == FAULT:
            flip_bit(counter(model, optimizer), 0, bit)

    return at_step


CASES = [*((name, 22) for name in COUNTING), ("AdamW", 0), ("AdamW", 17), ("fused", 3)]


@pytest.mark.parametrize(("name", "bit"), CASES)
def test_a_flipped_bit_is_named_in_the_same_step(name: str, bit: int, tmp_path: Path) -> None:
    model, alerts, seen = net(), [], {}
    optimizer = COUNTING[name](model.parameters())
    # told before the step that would use it ends
    optimizer.register_step_post_hook(lambda *_: seen.setdefault(guard.step, len(alerts)))
    with attach(model, optimizer, tmp_path, on_alert=alerts.append, digest_budget=None) as guard:
        train(guard, model, optimizer, at_step=flip(model, optimizer, bit))
        assert guard.health.errors == 0, guard.health.last_error
    (alert,) = (alert for alert in alerts if alert.detector in DETECTORS)
    before = int(torch.tensor(float(FAULT)).view(torch.int32))  # as many updates had been made
    assert (alert.step, alert.layer_name, alert.severity) == (FAULT, NAME, "proven")
    assert {key: alert.detail[key] for key in ("kind", "index", "bits", "before", "after")} == {
        "kind": "step",
        "index": 0,
        "bits": [bit],
        "before": f"0x{before:x}",
        "after": f"0x{before ^ 1 << bit:x}",
    }
    assert seen[FAULT - 1] == 0
    assert seen[FAULT] >= 1


@pytest.mark.parametrize("policy", ["skip", "halt"])
def test_a_policy_acts_before_the_step_is_applied(policy: Any, tmp_path: Path) -> None:
    """With a negative counter torch's own step would raise."""
    model, alerts = net(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []

    def at_step(step: int) -> None:
        if step == FAULT:
            flip_bit(counter(model, optimizer), 0, 31)
            before.extend(p.detach().clone() for p in model.parameters())
        elif step == FAULT + 1:
            after.extend(p.detach().clone() for p in model.parameters())
            flip_bit(counter(model, optimizer), 0, 31)
            guard.refresh()

    options = {"policy": policy, "on_alert": alerts.append, "digest_budget": None}
    with attach(model, optimizer, tmp_path, **options) as guard:
        train(guard, model, optimizer, at_step=at_step)
    assert [alert.step for alert in alerts if alert.detail.get("kind") == "step"] == [FAULT]
    assert all(map(torch.equal, before, after))


def test_on_a_budget_a_flip_is_told_by_the_next_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # after steps 0, 4 and 8, and before 1, 5 and 9
    monkeypatch.setattr(Rotation, "counters_due", lambda self: guard.step % 4 == 0)
    model, alerts = net(), list[Alert]()
    optimizer = torch.optim.AdamW(model.parameters())

    def at_step(step: int) -> None:
        if step == 6:
            flip_bit(counter(model, optimizer), 0, 25)

    with attach(model, optimizer, tmp_path, on_alert=alerts.append) as guard:
        train(guard, model, optimizer, 12, at_step)
        assert guard.health.errors == 0, guard.health.last_error
    (alert,) = (alert for alert in alerts if alert.detector in DETECTORS)
    flipped = torch.tensor(6.0).view(torch.int32) ^ 1 << 25
    text = f"went from 5 to {float(flipped.view(torch.float32)) + 3:g} within the 4 steps up to 8"
    assert (alert.step, alert.layer_name, alert.severity) == (8, NAME, "proven")
    assert (alert.detector, alert.detail["steps"]) == ("step_counter", 4)
    assert text in alert.detail["text"]


def test_a_counter_that_an_update_does_not_make_is_told(tmp_path: Path) -> None:
    model, alerts = net(), []
    optimizer = torch.optim.AdamW(model.parameters())

    def within(*_: Any) -> None:
        if guard.step == FAULT:
            flip_bit(counter(model, optimizer), 0, 22)

    optimizer.register_step_post_hook(within)  # before the guard's
    with attach(model, optimizer, tmp_path, on_alert=alerts.append, digest_budget=None) as guard:
        train(guard, model, optimizer)
    (alert,) = (alert for alert in alerts if alert.detector in DETECTORS)
    assert (alert.step, alert.detector, alert.layer_name) == (FAULT, "step_counter", NAME)
    assert alert.severity == "proven"
    assert alert.detail["before"] == "0x40a00000"  # 5.0
    assert alert.detail["after"] == f"0x{0x40C00000 ^ 1 << 22:x}"  # 6.0, flipped


def test_what_is_written_on_purpose_is_told_by_refresh(tmp_path: Path) -> None:
    model, alerts = net(), []
    optimizer = torch.optim.AdamW(model.parameters())

    def at_step(step: int) -> None:
        if step == FAULT:
            counter(model, optimizer).fill_(0)
            guard.refresh()

    with attach(model, optimizer, tmp_path, on_alert=alerts.append, digest_budget=None) as guard:
        train(guard, model, optimizer, at_step=at_step)
    assert alerts == []


def test_a_checkpoint_of_a_flipped_counter_is_not_clean(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    folders: list[Path | None] = []

    def at_step(step: int) -> None:
        if step in (FAULT - 2, FAULT):
            if step == FAULT:
                flip_bit(counter(model, optimizer), 0, 3)
            folders.append(guard.checkpoint({"model": model, "optimizer": optimizer}, step - 1))

    with attach(model, optimizer, tmp_path, digest_budget=None) as guard:
        train(guard, model, optimizer, at_step=at_step)
    sound, flipped = (Manifest.read(folder) for folder in folders if folder is not None)
    assert sound.status == "clean"
    assert flipped.status == "suspect"
    (reason,) = flipped.reasons
    assert "step: bytes differ from the recorded digest (element 0, bits [3])" in reason


def test_only_what_changed_is_in_the_trace(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with attach(model, optimizer, tmp_path, digest_budget=None) as guard:
        train(guard, model, optimizer, at_step=flip(model, optimizer, 7))
    query = "SELECT step, phase, name, s1 FROM digests JOIN layer_names USING (layer)"
    found = rows(tmp_path, f"{query} WHERE kind = 'step' ORDER BY step")
    bits = int(torch.tensor(float(FAULT)).view(torch.int32))
    assert found == [(FAULT - 1, "after", NAME, bits), (FAULT, "before", NAME, bits ^ 1 << 7)]


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
def test_an_optimizer_without_counters_has_none(make: Make, tmp_path: Path) -> None:
    model = net()
    optimizer = make(model.parameters())
    with attach(model, optimizer, tmp_path) as guard:
        for batch in batches(3):

            def closure(batch: Any = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            optimizer.step(closure)
        assert guard._collector.counters.left() == {}
        assert guard.health.errors == 0, guard.health.last_error


# healthy trainings: each takes the steps that its name says, and alerts of no counter


def accumulation(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    attached(model, optimizer)
    for step, batch in enumerate(batches(HEALTHY)):
        loss_of(model, batch).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def scaler(model: nn.Module, attached: Callable[..., Guard], *, fused: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    attached(model, optimizer, scaler=scaler)
    for step, batch in enumerate(batches(HEALTHY)):
        loss = loss_of(model, batch) * (float("inf") if step % 7 == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def frozen(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    attached(model, optimizer)
    for step, batch in enumerate(batches(HEALTHY)):
        model[0].requires_grad_(step % 20 < 10)
        if step % 3 == 0 and step % 20 < 10:  # a branch that is not taken: no gradient
            loss_of(model[:2], batch).backward()
        else:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_optimizers(model: nn.Module, attached: Callable[..., Guard]) -> None:
    pair = [
        torch.optim.AdamW(model[0].parameters()),
        torch.optim.Adam(model[2].parameters(), amsgrad=True),
    ]
    attached(model, pair)
    for step, batch in enumerate(batches(HEALTHY)):
        loss_of(model, batch).backward()
        for optimizer in pair if step % 3 else pair[:1]:
            optimizer.step()
            optimizer.zero_grad()


def closures(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    attached(model, optimizer)
    for step, batch in enumerate(batches(HEALTHY)):

        def closure(batch: Any = batch, step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            if step % 10 == 9:
                raise KeyError(step)
            return loss

        with suppress(KeyError):
            optimizer.step(closure)


def lbfgs(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    attached(model, optimizer)
    for batch in batches(HEALTHY):

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


def in_backward(model: nn.Module, attached: Callable[..., Guard]) -> None:
    each = {p: torch.optim.AdamW([p]) for p in model.parameters()}
    attached(model, list(each.values()))

    def step(parameter: torch.Tensor) -> None:
        each[parameter].step()  # type: ignore[index] # it is the parameter
        each[parameter].zero_grad()  # type: ignore[index] # as above

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for batch in batches(HEALTHY):
        loss_of(model, batch).backward()


def resumed(model: nn.Module, attached: Callable[..., Guard]) -> None:
    first = torch.optim.AdamW(model.parameters())
    train(attached(model, first), model, first, HEALTHY // 2)
    second = torch.optim.AdamW(model.parameters())
    second.load_state_dict(first.state_dict())
    train(attached(model, second, first_step=HEALTHY // 2), model, second, HEALTHY // 2)


def state_made_anew(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attached(model, optimizer)

    def at_step(step: int) -> None:
        if step % 20 == 19:
            optimizer.state.clear()
        elif step % 20 == 9:  # the same values in other memory
            optimizer.load_state_dict(optimizer.state_dict())
        elif step % 20 == 4:
            for state in optimizer.state.values():
                state["step"].data = state["step"].data.clone()
        elif step % 20 == 14:
            state = optimizer.state[model[0].weight]
            optimizer.state[model[0].weight] = {**state, "step": state["step"].clone()}

    train(guard, model, optimizer, HEALTHY, at_step)


def added_layers(model: nn.Module, attached: Callable[..., Guard]) -> None:
    optimizer = torch.optim.AdamW(model[0].parameters())
    guard = attached(model, optimizer)

    def at_step(step: int) -> None:
        if step == HEALTHY // 2:
            optimizer.add_param_group({"params": list(model[2].parameters())})

    train(guard, model, optimizer, HEALTHY, at_step)


TRAININGS: dict[str, Callable[[nn.Module, Callable[..., Guard]], None]] = {
    "accumulation": accumulation,
    "scaler": lambda *parts: scaler(*parts, fused=False),
    "scaler, fused": lambda *parts: scaler(*parts, fused=True),
    "frozen": frozen,
    "two optimizers": two_optimizers,
    "closures": closures,
    "LBFGS": lbfgs,
    "in backward": in_backward,
    "resumed": resumed,
    "state made anew": state_made_anew,
    "added layers": added_layers,
}


@pytest.fixture(params=[None, 7], ids=["every step", "every 7th"])
def attached(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Guard]]:
    """Makes guards that read the counters so often; at the end nothing was told of them."""
    guards: list[Guard] = []
    if request.param is not None:
        asked = itertools.count()
        monkeypatch.setattr(Rotation, "counters_due", lambda _: next(asked) % request.param == 0)

    def make(model: nn.Module, optimizer: Any, **options: Any) -> Guard:
        budget = None if request.param is None else 0.2
        guards.append(attach(model, optimizer, tmp_path, digest_budget=budget, **options))
        return guards[-1]

    yield make
    for guard in guards:
        guard.close()
        assert guard.health.errors == 0, guard.health.last_error
    told = rows(tmp_path, "SELECT step, detector, detail->>'text' FROM alerts")
    assert [row for row in told if row[1] in DETECTORS] == []


@pytest.mark.parametrize("name", TRAININGS)
def test_no_healthy_training_is_accused(name: str, attached: Callable[..., Guard]) -> None:
    TRAININGS[name](net(), attached)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_no_healthy_training_is_accused_in_a_thousand_steps(
    name: str, attached: Callable[..., Guard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HEALTHY", 1000)
    TRAININGS[name](net(), attached)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo's own
def test_a_compiled_step_is_not_accused_and_a_flip_before_it_is_seen(tmp_path: Path) -> None:
    model, alerts = net(), list[Alert]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled = torch.compile(optimizer.step, backend="eager")
    with attach(model, optimizer, tmp_path, on_alert=alerts.append, digest_budget=None) as guard:
        for step, batch in enumerate(batches(30)):
            if step == 20:
                assert alerts == []
                flip_bit(counter(model, optimizer), 0, 12)
            loss_of(model, batch).backward()
            compiled()
            optimizer.zero_grad()
        assert guard.health.errors == 0, guard.health.last_error
    assert [(a.step, a.detail["kind"]) for a in alerts if a.detector in DETECTORS] == [(20, "step")]


def test_training_has_the_same_bits_with_counters_watched(tmp_path: Path) -> None:
    states = []
    for guarded in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        guard = attach(model, optimizer, tmp_path) if guarded else None
        train(guard, model, optimizer, 30)
        states.append(
            [t for state in optimizer.state.values() for t in state.values()]
            + list(model.parameters())
        )
        if guard is not None:
            guard.close()
    assert all(map(torch.equal, *states))
