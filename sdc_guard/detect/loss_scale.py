"""A loss scale that falls and falls: training stands still while the loss looks the same."""

from __future__ import annotations

from typing import Final

from .alert import Alert

# Scaling exists to lift small gradients out of float16's underflow. Below 1 it pushes them into
# it instead; a default scaler gets there from 65,536 by 17 halvings.
SMALLEST: Final = 1.0


class LossScaleWatch:
    """Raises one alert while the scale is below `SMALLEST`."""

    def __init__(self) -> None:
        self._standing = False

    @property
    def quiet(self) -> bool:
        """Whether no low scale stands."""
        return not self._standing

    def judge(self, step: int, scale: float | None, *, skipped: bool) -> list[Alert]:
        """Alerts of one step.

        Args:
            step: the optimizer step.
            scale: the loss scale of that step, or None without a scaler.
            skipped: whether the scaler skipped it, for a gradient that is not finite.
        """
        low = scale is not None and scale < SMALLEST
        new = low and skipped and not self._standing
        self._standing = low and (self._standing or new)
        if not new or scale is None:
            return []
        text = f"the loss scale is collapsing: {scale:.3g}, and this step was skipped again"
        return [Alert(step, "loss_scale", None, "", scale, SMALLEST, "suspect", {"text": text})]
