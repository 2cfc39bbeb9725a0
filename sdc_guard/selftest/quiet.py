"""A training without a fault: no alert, and the bits of one without a guard."""

from __future__ import annotations

from typing import Any, Final

from .line import Bench, Outcome, Trial
from .training import Parts, batch_of, loss_of, train

_SECTION = "healthy training"
_STEPS: Final = 120


def quiet(bench: Bench) -> Outcome:
    """Everything is watched, nothing is wrong."""
    run = bench.room("healthy")

    def save(parts: Parts, step: int) -> None:
        if step % 40 == 39 and parts.guard is not None:
            parts.guard.checkpoint({"model": parts.model, "optimizer": parts.optimizer}, step - 1)

    trained = train(
        run, at_step=save, steps=_STEPS, shadow=(batch_of(0), loss_of), shadow_every=10,
        invariants_every=5, probe_every=20,
    )  # fmt: skip
    health = trained.health
    if trained.alerts:
        return Outcome("FAIL", f"{len(trained.alerts)} alerts, the first: {trained.alerts[0]}")
    if health.errors or health.dropped:
        return Outcome(
            "FAIL", f"{health.errors} errors, {health.dropped} rows dropped: {health.last_error}"
        )
    return Outcome("PASS", f"{_STEPS} steps, no alert, no error")


def same_bits(bench: Bench) -> Outcome:
    """With and without a guard."""
    options: dict[str, Any] = {"probe_every": 5, "invariants_every": 5}
    options["shadow"] = (batch_of(0), loss_of)
    guarded = train(bench.room("guarded"), **options)
    plain = train(None)
    apart = [name for name in plain.digests if plain.digests[name] != guarded.digests[name]]
    if apart:
        return Outcome("FAIL", f"{len(apart)} tensors have other bits, {apart[0]} among them")
    return Outcome("PASS", f"{len(plain.digests)} tensors have equal bits with and without")


TRIALS = (
    Trial(_SECTION, "no alert", quiet),
    Trial(_SECTION, "the same bits with and without", same_bits),
)
