"""The shadow pass: the pinned batch against itself, its two losses, then their past."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .alert import Alert
from .shadow_trend import BUDGET, ShadowTrend


class ShadowWatch:
    """Judges shadow passes: first what went in, and only then what came out.

    Args:
        budget: false incidents per evaluation, see `ShadowTrend`.
    """

    def __init__(self, budget: float | None = BUDGET) -> None:
        self._told: int | None = None
        self._trend = ShadowTrend(budget)

    def judge(
        self,
        step: int,
        pinned: int | None,
        found: int | None,
        losses: Sequence[float],
        lr: float | None = None,
    ) -> list[Alert]:
        """The alerts of one pass.

        Args:
            step: the step after which it ran.
            pinned: hash of the batch when it was pinned.
            found: hash of it right after the pass. A change is told once; the losses of another
                batch say nothing of the model.
            losses: of the two passes.
            lr: the learning rate.
        """
        if found != pinned:
            if found == self._told:
                return []
            self._told = found
            return [input_alert(step, pinned, found)]
        repeated = repeat_alert(step, losses[0], losses[1])
        trend = self._trend.judge(step, losses[0], lr)
        return trend if repeated is None else [repeated, *trend]


def input_alert(step: int, pinned: int | None, found: int | None) -> Alert:
    """The alert for a pinned batch that is no longer the one that was pinned.

    Args:
        step: the step after which it was seen.
        pinned: hash of the batch when it was pinned.
        found: its hash now.
    """
    text = (
        "input differs: the pinned batch in memory is no longer the one that was pinned, so its "
        "loss is not comparable with earlier ones; the model is not accused. Start the training "
        "again from a checkpoint to pin it anew"
    )
    detail = {"text": text, "pinned": pinned, "found": found}
    return Alert(step, "shadow_batch", None, "", 1.0, 0.0, "proven", detail)


def repeat_alert(step: int, first: float, second: float) -> Alert | None:
    """The alert for two losses that should be equal bit for bit, None where they are.

    It suspects and does not convict: kernels that are not deterministic differ on a sound device.

    Args:
        step: the step after which both were evaluated.
        first: the loss, float64 of the exact value.
        second: the loss of the repeated pass. NaN equals NaN.
    """
    if math.isnan(first) and math.isnan(second):
        return None
    if first == second and math.copysign(1, first) == math.copysign(1, second):
        return None
    text = (
        f"the same batch and weights gave the loss {first!r} and then {second!r}; without "
        "torch.use_deterministic_algorithms(True) the kernels may be the cause"
    )
    detail = {"text": text, "first": first.hex(), "second": second.hex()}
    return Alert(step, "shadow_repeat", None, "", 1.0, 0.0, "suspect", detail)
