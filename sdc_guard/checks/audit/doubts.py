"""Why the steps of a training differ from their replays, where that accuses no device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .kept_step import MicroBatch
from .step_replay import Result


def why_not_shown(
    here: Sequence[Result],
    observed: Sequence[MicroBatch],
    *,
    matched: int,
    hooked: bool,
) -> tuple[str, str]:
    """What a difference says before it was shown that a step repeats; and the step's losses.

    Args:
        here: its replays, one of which differs from it at least.
        observed: the step's micro-batches.
        matched: earlier steps that repeated.
        hooked: whether hooks besides the guard's run on gradients.
    """
    if len(set(here)) > 1:
        why = "other hooks on gradients" if hooked else "its kernels, or a state of its own"
        return (
            f"this training was not shown to repeat bit for bit here ({why}): "
            "torch.use_deterministic_algorithms(True), and see docs/verdicts.md"
        ), ""
    if matched:
        return (
            "runs of audit repeat bit for bit and differ from the step, before this training was "
            "shown to repeat: that may be the script, or a fault; see docs/verdicts.md"
        ), ""
    hooks = ", and do other hooks on gradients change them" if hooked else ""
    return (
        "runs of audit repeat bit for bit and differ from the step each time: does audit return "
        f"the loss whose backward() the script calls{hooks}? See docs/verdicts.md"
    ), _losses(here[0], observed)


def same_loss(observed: MicroBatch, replayed: torch.Tensor) -> bool:
    """Whether a replay gave the loss that was observed, bit for bit, or NaN for NaN."""
    if observed.loss is None:
        return False
    loss = observed.loss.cpu()
    return torch.equal(loss, replayed) or bool(loss.isnan() and replayed.isnan())


def _losses(result: Result, observed: Sequence[MicroBatch]) -> str:
    """Those of the first micro-batch where they are not the same."""
    known = [
        (micro, replayed)
        for micro, replayed in zip(observed, result.losses, strict=True)
        if micro.loss is not None
    ]
    if not known:
        return ""
    for micro, replayed in known:
        if micro.loss is not None and not same_loss(micro, replayed):
            one, two = float(replayed), float(micro.loss)
            digits = 6 if f"{one:.6g}" != f"{two:.6g}" else 17
            return f" (it gave {one:.{digits}g}, observe was given {two:.{digits}g})"
    return f" (it gave {float(result.losses[0]):.6g}, and so did observe: another one, then)"
