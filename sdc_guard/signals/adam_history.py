"""What is known of the past of Adam's moments: their betas, and whether they started from zero."""

from __future__ import annotations

from typing import Any

import torch

from ..detect.adam_limits import EARLIER, ROUNDING, UNBOUNDED, MomentLimit, moment_limit
from .adam_groups import Group, Number, betas_of, dtype_name, has_tensor_betas


class AdamHistory:
    """Follows an optimizer's betas and state from step to step.

    `before_step` and `after_step` are called around every step; they cost a few comparisons
    unless betas change, a state is made or one is loaded.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._betas: list[tuple[float, float] | None] = []
        self._given: list[Any] = []
        self._fixed = False  # they are tuples of numbers, into which nobody can write
        self._limits: list[dict[str, MomentLimit]] = []
        self._state: Any = None
        # updates that a parameter's moments had when they were first seen; None: none, zero start
        self._first_seen: dict[torch.Tensor, torch.Tensor | None] = {}

    def before_step(self) -> None:
        """Take in the betas of the step to come, and any state that another than it has made."""
        groups = self._optimizer.param_groups
        if not self._same_betas(groups):
            for number, group in enumerate(groups):
                self._take_betas(number, group)
            self._given = [group["betas"] for group in groups]
            self._fixed = all(
                type(betas) is tuple and all(type(beta) is float for beta in betas)
                for betas in self._given
            )
        if self._optimizer.state is not self._state:
            # load_state_dict puts another mapping in its place
            self._state, self._first_seen = self._optimizer.state, {}
        self._take_states(zero_start=False)

    def after_step(self) -> None:
        """Take in the states that the step has made."""
        self._take_states(zero_start=True)

    def limit(self, group: int, dtype: torch.dtype) -> MomentLimit:
        """The joined limit of all betas of a group so far, for moments of a dtype."""
        return self._limits[group].get(dtype_name(dtype), UNBOUNDED)

    def factor(self, parameter: torch.Tensor, limit: MomentLimit) -> Number | None:
        """c of a parameter's moments now, a tensor () where they did not start from zero.

        None for a parameter without moments.
        """
        if parameter not in self._first_seen:
            return None
        first = self._first_seen[parameter]
        if first is None:
            return float(limit.square**0.5)
        updates = torch.as_tensor(self._optimizer.state[parameter]["step"]) - first
        past = torch.pow(limit.ratio, updates.to(torch.float64).clamp(min=0))
        return (past * EARLIER + limit.square).sqrt()

    def _same_betas(self, groups: list[Group]) -> bool:
        # by identity: to compare tensors would wait for their device
        return (
            self._fixed
            and len(groups) == len(self._given)
            and all(group["betas"] is b for group, b in zip(groups, self._given, strict=True))
        )

    def _take_betas(self, number: int, group: Group) -> None:
        betas = betas_of(group)
        if number == len(self._betas):
            self._limits.append({})
            self._betas.append((-1.0, -1.0))
        if betas == self._betas[number]:
            return
        self._betas[number] = betas
        known, tensors = self._limits[number], has_tensor_betas(group)
        for dtype, rounding in ROUNDING.items():
            now = UNBOUNDED if betas is None else moment_limit(*betas, rounding, tensors=tensors)
            known[dtype] = now.joined(known.get(dtype, now))

    def _take_states(self, *, zero_start: bool) -> None:
        if len(self._optimizer.state) == len(self._first_seen):
            return
        for parameter, values in self._optimizer.state.items():
            if parameter not in self._first_seen and "step" in values:
                first = torch.as_tensor(values["step"])
                self._first_seen[parameter] = None if zero_start else first.detach().clone()
