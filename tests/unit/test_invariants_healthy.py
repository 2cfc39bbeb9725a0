"""The invariants of Adam raise no alarm in healthy training, and do not change it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_runs import Net, Vector, Watch, apply, betas, train
from torch.optim import Adam, AdamW, NAdam, Optimizer, RAdam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {}),
        (Adam, {"weight_decay": 0.1, "amsgrad": True}),
        (Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "fused": True}),
        (AdamW, {"betas": (0.9, 0.95), "foreach": False}),
        (AdamW, {"betas": (0.9, 0.95), "fused": True, "weight_decay": 0.3}),
        (AdamW, {"amsgrad": True, "foreach": True}),
        (AdamW, {"lr": torch.tensor(1e-2)}),
        (AdamW, {"betas": (torch.tensor(0.9), torch.tensor(0.99)), "foreach": False}),
        (NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
        (RAdam, {"foreach": True}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_no_alarm_in_training(
    kind: type[Optimizer], options: dict[str, Any], dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    model = Net().to(dtype)
    optimizer = kind(model.parameters(), **{"lr": 1e-2, **copy.deepcopy(options)})
    watch = Watch(model, optimizer)
    steps = 300 if kind is AdamW and dtype == torch.float32 else 60
    train(model, optimizer, steps, seed=seed)
    assert watch.looked == steps * len(list(model.parameters()))
    assert not watch.alerts
    # it was looked at: the largest move of a step comes close to lr in the first one
    assert (watch.largest_ratio > 0.1) == (kind in (Adam, AdamW))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_no_alarm_when_the_momentum_is_cycled(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    model = Net().to(dtype)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = Watch(model, optimizer)
    cycle = OneCycleLR(optimizer, max_lr=3e-2, total_steps=151, base_momentum=0.6)
    train(model, optimizer, 150, seed=seed, scheduler=cycle)
    assert not watch.alerts
    assert not watch.audit.take_notes()


def test_no_alarm_from_steps_that_gradient_scaling_skips(seed: int) -> None:
    for options in IMPLEMENTATIONS.values():
        model = Vector(1.0, -2.0)
        optimizer = AdamW(model.parameters(), lr=0.1, **options)
        watch = Watch(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(12):
            scale = scaler.scale(torch.ones(())).item()
            bad = step in (0, 1, 5)  # the fused step itself is run, and told to do nothing
            model.w.grad = torch.tensor([math.inf if bad else scale, -scale])
            scaler.step(optimizer)
            scaler.update()
        assert int(optimizer.state[model.w]["step"]) == 9
        assert not watch.alerts


def test_no_alarm_from_parameters_without_a_gradient(seed: int) -> None:
    torch.manual_seed(seed)
    model = Net()
    model.hidden.bias.requires_grad_(False)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    watch = Watch(model, optimizer)

    def leave_out(step: int, _: Optimizer) -> None:
        model.head.weight.requires_grad_(step % 3 == 0)

    train(model, optimizer, 100, seed=seed, after_each=leave_out)
    assert not watch.alerts


@st.composite
def gradient_streams(draw: st.DrawFn) -> list[float]:
    """Gradients over 16 decades: runs that grow, shrink or stay, with zeros and signs between."""
    stream: list[float] = []
    for _ in range(draw(st.integers(1, 4))):
        value = draw(st.sampled_from([1.0, -1.0])) * 10 ** draw(st.floats(-12, 3))
        growth = draw(st.sampled_from([0.0, 0.5, 1.0, 1.05, 1.11, 2.0, -1.0]))
        for _ in range(draw(st.integers(1, 12))):
            stream.append(value)
            value *= growth
    return [min(max(g, -1e4), 1e4) for g in stream]


@given(
    pairs=st.lists(betas(), min_size=1, max_size=3),
    stream=gradient_streams(),
    implementation=st.sampled_from(sorted(IMPLEMENTATIONS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.float16]),
    lr=st.floats(1e-6, 0.5),
    eps=st.sampled_from([1e-8, 1e-4, 1e-15]),
    weight_decay=st.sampled_from([0.0, 0.01, 1.0]),
    flags=st.fixed_dictionaries(
        {name: st.booleans() for name in ("amsgrad", "maximize", "decoupled_weight_decay")}
    ),
)
@settings(max_examples=120)
def test_no_alarm_whatever_the_options_and_gradients(
    pairs: list[tuple[float, float]],
    stream: list[float],
    implementation: str,
    dtype: torch.dtype,
    lr: float,
    eps: float,
    weight_decay: float,
    flags: dict[str, bool],
) -> None:
    model = Vector(0.0, 0.3, -2.0, 1e-6, 100.0, dtype=dtype)
    options = {**IMPLEMENTATIONS[implementation], **flags}
    optimizer = Adam(
        model.parameters(), lr=lr, betas=pairs[0], eps=eps, weight_decay=weight_decay, **options
    )
    watch = Watch(model, optimizer)
    for step, g in enumerate(stream):
        optimizer.param_groups[0]["lr"] = lr * (1 + step % 3)
        optimizer.param_groups[0]["betas"] = pairs[step % len(pairs)]
        apply(model, optimizer, g)
    # float16 overflows, and then has lost what the bounds speak of
    allowed = {"adam_nonfinite"} if dtype == torch.float16 else set()
    assert watch.detectors <= allowed, watch.alerts


@pytest.mark.parametrize("implementation", sorted(IMPLEMENTATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", [(0.9, 0.999), (0.9, 0.95), (0.5, 0.9)])
def test_the_extremal_gradients_raise_no_alarm(
    pair: tuple[float, float], dtype: torch.dtype, implementation: str
) -> None:
    # each gradient is the last one times β₂/β₁: equality in Cauchy and Schwarz
    model = Vector(0.0, dtype=dtype)
    optimizer = AdamW(
        model.parameters(), lr=1e-3, betas=pair, weight_decay=0, **IMPLEMENTATIONS[implementation]
    )
    watch = Watch(model, optimizer)
    growth, steps = pair[1] / pair[0], 100
    for step in range(steps):
        apply(model, optimizer, growth ** (step - steps) * 100)
    state = optimizer.state[model.w]
    c = (1 - pair[0]) / math.sqrt((1 - pair[1]) * (1 - pair[0] ** 2 / pair[1]))
    assert not watch.alerts
    if dtype == torch.float32:
        assert float(state["exp_avg"] / state["exp_avg_sq"].sqrt()) > 0.99 * c
        assert 0.98 < watch.largest_ratio <= 1


def test_a_state_loaded_with_another_past_raises_no_alarm() -> None:
    old, model = Vector(0.0), Vector(0.0)
    before = AdamW(old.parameters(), betas=(0.3, 0.999))
    for step in range(30):
        apply(old, before, 3.33 ** (step - 30))
    optimizer = AdamW(model.parameters(), betas=(0.9, 0.999))
    watch = Watch(model, optimizer)
    apply(model, optimizer, 1.0)
    saved = before.state_dict()
    saved["param_groups"][0]["betas"] = (0.9, 0.999)
    optimizer.load_state_dict(saved)
    apply(model, optimizer, 0.5)
    state = optimizer.state[model.w]
    assert float(state["exp_avg"] / state["exp_avg_sq"].sqrt()) > 1.5 * 7.27
    assert not watch.alerts


def test_training_keeps_its_bits(seed: int) -> None:
    states = []
    for watched in (True, False):
        torch.manual_seed(seed)
        model = Net()
        optimizer = AdamW(model.parameters(), lr=torch.tensor(1e-2), amsgrad=True)
        if watched:
            Watch(model, optimizer, elements=37)
        schedule = CosineAnnealingLR(optimizer, 50)
        train(model, optimizer, 50, seed=seed, scheduler=schedule)
        states.append([*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values())])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
