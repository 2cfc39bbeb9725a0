"""Optimizer state that Adam's arithmetic cannot reach; without the digests, which would see it."""

from __future__ import annotations

import math
from functools import partial

import torch

from .expected import raised
from .line import Bench, Outcome, Trial
from .training import FAULT, LAYER, Parts, train

_SECTION = "detectors"


def moment(detector: str, kind: str, value: float, bench: Bench) -> Outcome:
    """One element of a moment is set between two steps."""

    def inject(parts: Parts, step: int) -> None:
        if step == FAULT:
            parts.optimizer.state[parts.parameter][kind].view(-1)[5] = value

    trained = train(bench.room(detector), at_step=inject, digest_budget=0, invariants_every=1)
    return raised(detector, trained, layer=LAYER)


def too_far(bench: Bench) -> Outcome:
    """One element moves by a hundred learning rates within a step."""
    steps = iter(range(1_000_000))

    def inject(parts: Parts) -> None:
        def strike(*_: object) -> None:
            if next(steps) == FAULT:
                with torch.no_grad():
                    parts.parameter.view(-1)[5] += 0.1

        parts.optimizer.register_step_post_hook(strike)

    trained = train(bench.room("too-far"), inject, digest_budget=0, invariants_every=1)
    return raised("adam_step", trained, layer=LAYER)


TRIALS = (
    Trial(_SECTION, "exp_avg beyond Adam's bound", partial(moment, "adam_bound", "exp_avg", 1e3)),
    Trial(_SECTION, "exp_avg_sq below zero", partial(moment, "adam_negative_v", "exp_avg_sq", -1)),
    Trial(_SECTION, "exp_avg not finite", partial(moment, "adam_nonfinite", "exp_avg", math.inf)),
    Trial(_SECTION, "a step farther than Adam's", too_far),
)
