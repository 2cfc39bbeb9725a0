"""The shadow pass against itself: the same batch and weights, evaluated twice in a row."""

from __future__ import annotations

import math

from .alert import Alert


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
