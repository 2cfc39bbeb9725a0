"""Faults of the computation that statistics can see."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from ..inject.bits import flip_bit
from .expected import raised
from .line import Bench, Outcome, Trial
from .training import FAULT, LAYER, Parts, alone, batch_of, loss_of, small_model, train

_SECTION = "detectors"


def gradient(detector: str, value: float, bench: Bench) -> Outcome:
    """One layer's gradient is multiplied at one step, in the backward pass."""
    calls = iter(range(1_000_000))

    def inject(parts: Parts) -> None:
        def spoil(grad: torch.Tensor) -> torch.Tensor:
            return grad * value if next(calls) == FAULT else grad

        parts.parameter.register_hook(spoil)  # type: ignore[no-untyped-call] # torch has no types here

    return raised(detector, train(bench.room(detector), inject), layer=LAYER)


def loss_not_finite(bench: Bench) -> Outcome:
    """The loss of one step is NaN: parameters that became NaN make it so."""

    def poison(parts: Parts, step: int) -> None:
        if step == FAULT:
            with torch.no_grad():
                parts.parameter.fill_(math.nan)

    return raised("nonfinite_loss", train(bench.room("loss"), at_step=poison))


def shadow(bench: Bench) -> Outcome:
    """The second of two equal shadow passes answers otherwise."""
    calls = iter(range(1_000_000))

    def loss_fn(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        # the first call learns which parameters are written, then two make a pair
        return loss * (1 + 2.0**-20) if next(calls) == 4 else loss

    trained = train(bench.room("shadow"), shadow=(batch_of(0), loss_fn), shadow_every=FAULT)
    return raised("shadow_repeat", trained)


def worse_weights(bench: Bench) -> Outcome:
    """One layer's weights grow a hundredfold between two steps: the pinned batch's loss tells."""

    def spoil(parts: Parts, step: int) -> None:
        if step == FAULT:
            with torch.no_grad():
                parts.parameter.mul_(100.0)

    trained = train(
        bench.room("jump"), at_step=spoil, shadow=(batch_of(0), loss_of), shadow_every=1
    )
    return raised("shadow_jump", trained)


def pinned_batch(bench: Bench) -> Outcome:
    """One bit of the shadow's batch, in the guard's own copy of it."""

    def strike(parts: Parts, step: int) -> None:
        if step == FAULT and parts.guard is not None and parts.guard._shadow is not None:
            flip_bit(parts.guard._shadow._batch, 5, 0)

    trained = train(
        bench.room("batch"), at_step=strike, shadow=(batch_of(0), loss_of), shadow_every=FAULT
    )
    return raised("shadow_batch", trained)


def audited(bench: Bench) -> Outcome:
    """One low bit of one gradient at one step, which is then run again."""
    now = [-1]

    def inject(parts: Parts) -> None:
        def spoil(grad: torch.Tensor) -> torch.Tensor:
            if now[0] != FAULT:
                return grad
            now[0] = -1  # once: the step that is run again is sound
            grad = grad.clone()
            flip_bit(grad, 3, 2)
            return grad

        parts.parameter.register_hook(spoil)  # type: ignore[no-untyped-call] # torch has no types here

    def begin(_: Parts, step: int) -> None:
        now[0] = step

    trained = train(bench.room("audit"), inject, begin, audit=loss_of, audit_rate=1.0)
    return raised("step_audit", trained)


def loss_scale(bench: Bench) -> Outcome:
    """A loss scale that is halved at every step, because no gradient is finite."""
    from ..detect.alert import Alert
    from ..guard import Guard

    alerts: list[Alert] = []
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with (
        alone(),
        Guard(
            model, optimizer, run=bench.room("scale"), scaler=scaler, policy="record",
            on_alert=alerts.append, probe_every=None,
        ) as guard,
    ):  # fmt: skip
        for step in range(6):
            loss = loss_of(model, batch_of(step))
            (scaler.scale(loss) * math.inf).backward()  # type: ignore[no-untyped-call] # as above
            guard.observe(loss)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    found = [alert.detector for alert in alerts]
    if found != ["loss_scale"]:
        return Outcome("FAIL", f"alerts of {found or 'no detector'} for one of loss_scale")
    return Outcome("PASS", f"loss_scale at a scale of {alerts[0].score}")


TRIALS = (
    Trial(
        _SECTION, "a gradient that is not finite", partial(gradient, "nonfinite_gradient", math.inf)
    ),
    Trial(_SECTION, "a gradient far too large", partial(gradient, "gradient_norm", 1e6)),
    Trial(_SECTION, "a gradient far too small", partial(gradient, "gradient_norm", 1e-6)),
    Trial(_SECTION, "a gradient of zeros", partial(gradient, "gradient_zeros", 0.0)),
    Trial(_SECTION, "a loss that is not finite", loss_not_finite),
    Trial(_SECTION, "a shadow loss that does not repeat", shadow),
    Trial(_SECTION, "a shadow loss that jumps", worse_weights),
    Trial(_SECTION, "a loss scale that collapses", loss_scale),
    Trial(_SECTION, "a bit of the shadow's batch", pinned_batch),
    Trial(_SECTION, "a low bit of a gradient, audited", audited),
)
