"""The loss scale of automatic mixed precision: by how much gradients are too large, and which
steps were skipped because of it.

A GradScaler multiplies the loss. In `scaler.step(optimizer)` it either divides the gradients
itself and, if one is not finite, never calls the optimizer; or, for a fused optimizer, hands the
scale and what it found over to it. Nothing of that is waited for here.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

_FRAMES = 16  # between scaler.step() and an optimizer's hook there are fewer
_TRIES = 3  # steps at which the caller is looked for


class LossScale:
    """Watches one GradScaler, given or found.

    Args:
        scaler: the script's scaler. Without one it is looked for among the callers of the first
            optimizer steps; before the first step, the one that is being updated is taken for it.

    Attributes:
        may_skip: whether there is a scaler that may leave a step out.
    """

    def __init__(self, scaler: GradScaler | None = None) -> None:
        self._scaler = scaler
        self._certain = scaler is not None
        self._tries = _TRIES
        self._candidates: list[GradScaler] | None = None
        self._updates: list[tuple[GradScaler, object]] = []
        self._at_backward: torch.Tensor | None = None
        self.may_skip = False

    def look_around(self, optimizer: torch.optim.Optimizer) -> None:
        """Find the scaler that is calling `optimizer.step()`, if one is; call it in a step hook."""
        if self._certain or not self._tries:
            return
        self._tries -= 1
        found = _calling_scaler()
        self._certain = found is not None
        if found is not None or getattr(optimizer, "grad_scale", None) is None:
            self._scaler = found
        if self._certain or not self._tries:
            self._candidates = []

    def backward_ended(self) -> None:
        """Remember which scaler updates this backward followed."""
        if self._scaler is None and self._candidates == []:
            self._updates, self.may_skip = [], False
            return
        if self._scaler is None and self._candidates is None:
            self._candidates = _live_scalers()
        known = [self._scaler] if self._scaler else self._candidates or []
        self._updates = [(scaler, _last_update(scaler)) for scaler in known]
        self.may_skip = bool(self._updates)
        self._at_backward = self._now()

    def updated_since(self) -> bool:
        """Whether the scaler's update() ran since the last backward ended.

        With gradients measured and no step taken since then, that step was skipped.
        """
        for scaler, update in self._updates:
            if _last_update(scaler) is not update:
                if self._scaler is None:
                    self._scaler = scaler
                    self._at_backward = _before_backoff(self._now(), scaler)
                return True
        return False

    def value(self) -> torch.Tensor | None:
        """The scale of the newest backward, one float32 on its device; None without one."""
        if self._scaler is None:
            return None
        # a scaler found in the first step was not known in its backward
        return self._now() if self._at_backward is None else self._at_backward

    def _now(self) -> torch.Tensor | None:
        scale = getattr(self._scaler, "_scale", None)
        return scale.detach().clone() if isinstance(scale, torch.Tensor) else None

    def found_inf(self, optimizers: list[torch.optim.Optimizer]) -> torch.Tensor | None:
        """Positive if a fused optimizer is about to skip its step, on its device."""
        found = [getattr(optimizer, "found_inf", None) for optimizer in optimizers]
        values = [value for value in found if isinstance(value, torch.Tensor)]
        return values[0].detach().clone().reshape(()) if values else None


def _last_update(scaler: GradScaler) -> object:
    # update() puts a new dictionary there each time; nothing else tells without waiting
    return getattr(scaler, "_per_optimizer_states", None)


def _before_backoff(scale: torch.Tensor | None, scaler: GradScaler) -> torch.Tensor | None:
    """The scale before the update that lowered it."""
    return None if scale is None else scale / scaler.get_backoff_factor()


def _calling_scaler() -> GradScaler | None:
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        frame = frame.f_back
        if frame is None:
            return None
        if frame.f_code.co_name in ("step", "_maybe_opt_step"):
            owner = frame.f_locals.get("self")
            if isinstance(owner, GradScaler) and owner.is_enabled():
                return owner
    return None


def _live_scalers() -> list[GradScaler]:
    # by type: isinstance would ask each object for its class, and some warn when asked
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), GradScaler)]
    return [scaler for scaler in found if getattr(scaler, "_scale", None) is not None]
