"""Checks Adam's invariants on a rotating part of its state, around each step.

Each element has its turn once in `every` steps: its two moments after the step, and how far the
parameter moved in it. Only small tensors result, and nothing waits for the device.

    audit = OptimizerAudit(parameters, optimizer)  # parameters as `model_layers` gives them
    sensor = InvariantSensor({layer.id: layer.name for layer, _ in parameters})

    audit.before(step)                   # in the pre-hook of every step
    pending = audit.after(step)          # in the post-hook; None when nothing was due
    copy = HostCopy(pending.rows)        # float64 (len(pending.slices), len(COLUMNS))
    for note in audit.take_notes():      # what is not checked and why, each once
        recorder.event(step, "invariants", note)
    # later, when copy.ready():
    alerts = sensor.judge(pending.step, pending.slices, copy.array())

A step that never ends by `after` leaves nothing behind. A state that another than the optimizer's
own step has made, `load_state_dict` for one, is noticed at the next `before`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..detect.adam_limits import ROUNDING, MomentLimit, StepSlack, step_slack
from ..detect.invariants import Slice
from ..digest.reference import stack_rows
from ..store.run_file import Layer
from .adam_coverage import covered, covered_in, is_adam
from .adam_groups import Number, StepSettings, beside, dtype_name, step_settings
from .adam_history import AdamHistory
from .invariants import MomentBound, check_state, check_step, flat, step_bound
from .turns import SLICE, Turns


@dataclass(frozen=True)
class PendingAudit:
    """An audit's results, perhaps still on their way.

    Attributes:
        step: the optimizer step.
        slices: what was looked at.
        rows: float64 (len(slices), len(COLUMNS)).
    """

    step: int
    slices: tuple[Slice, ...]
    rows: torch.Tensor


@dataclass(frozen=True)
class _Watched:
    """A slice under watch during one step; without slack its move is not bounded."""

    piece: Slice
    parameter: torch.Tensor
    copy: torch.Tensor
    limit: MomentLimit
    settings: StepSettings
    slack: StepSlack | None

    def now(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The same elements of a tensor, or None if it is not one of the same kind."""
        row = flat(tensor)
        if row.dtype != self.copy.dtype or row.numel() < self.piece.stop:
            return None
        return _part(row, self.piece)


class OptimizerAudit:
    """Checks a part of an optimizer's state, and of its update, at each step.

    Args:
        parameters: layer and parameter; those that the optimizer does not train are left out.
        optimizer: one that `covered` does not cover costs nothing and leaves one note.
        every: steps in which each element has its turn.
        elements: of a slice, at most; so many are copied at once.
    """

    def __init__(
        self,
        parameters: list[tuple[Layer, torch.nn.Parameter]],
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 1000,
        elements: int = SLICE,
    ) -> None:
        self._optimizer = optimizer
        self._history = AdamHistory(optimizer)
        self._notes: list[str] = []
        self._noted: set[str] = set()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._parameters = {layer.id: p for layer, p in parameters if id(p) in own}
        first = next(iter(self._parameters.values()), None)
        self._active = first is not None and is_adam(optimizer)
        if first is not None and not self._active:
            self._note(covered(optimizer, first).reason)
        sizes = [(layer, flat(p).numel()) for layer, p in self._parameters.items()]
        self._turns = Turns(sizes, every=every, elements=elements)
        self._watched: tuple[int, list[_Watched]] = (-1, [])

    def before(self, step: int) -> None:
        """Copy what is due in this step, and keep the settings that it will run with."""
        if not self._active:
            return
        self._history.before_step()
        self._watched = -1, []
        due = self._turns.due(step)
        if not due:
            return
        with torch.no_grad():
            groups = self._group_of_parameter()
            watched = [self._watch(piece, groups) for piece in due]
            self._watched = step, [one for one in watched if one is not None]

    def after(self, step: int) -> PendingAudit | None:
        """Check what was copied before this step; None when there is nothing."""
        if not self._active:
            return None
        (copied_at, watched), self._watched = self._watched, (-1, [])
        self._history.after_step()
        if not watched:
            return None
        with torch.no_grad():
            rows = {one.piece: self._row(one) for one in watched if copied_at == step}
            found = {piece: row for piece, row in rows.items() if row is not None}
            if not found:
                return None
            return PendingAudit(step, tuple(found), stack_rows(list(found.values())))

    def take_notes(self) -> list[str]:
        """What was found not to be covered since the last call; each is told once."""
        notes, self._notes = self._notes, []
        return notes

    def _note(self, reason: str) -> None:
        if reason and reason not in self._noted:
            self._noted.add(reason)
            self._notes.append(f"optimizer invariants not checked, or not all: {reason}")

    def _group_of_parameter(self) -> dict[int, int]:
        return {
            id(parameter): number
            for number, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }

    def _watch(self, piece: Slice, groups: dict[int, int]) -> _Watched | None:
        parameter = self._parameters[piece.layer]
        number = groups.get(id(parameter))
        if number is None:
            return None
        row, group = flat(parameter), self._optimizer.param_groups[number]
        settings = step_settings(self._optimizer, group, row.device)
        coverage = covered_in(self._optimizer, group, row.dtype)
        self._note(coverage.reason)
        if settings is None or not coverage.moments:
            return None
        limit = self._history.limit(number, row.dtype)
        if not limit.bounded:
            self._note(f"earlier betas of group {number} bound nothing in {dtype_name(row.dtype)}")
            return None
        slack = None
        if coverage.step:
            eps, rounding = float(group["eps"]), ROUNDING[dtype_name(row.dtype)]
            slack = step_slack(limit, settings.beta1, settings.beta2, eps, rounding)
        copy = _part(row, piece).clone()
        return _Watched(piece, parameter, copy, limit, settings, slack)

    def _row(self, watched: _Watched) -> torch.Tensor | None:
        """What was found in a slice, float64 (len(COLUMNS),); None without moments."""
        factor = self._history.factor(watched.parameter, watched.limit)
        if factor is None:
            return None
        state = self._optimizer.state[watched.parameter]
        m, v = watched.now(state["exp_avg"]), watched.now(state["exp_avg_sq"])
        parameter = watched.now(watched.parameter)
        if m is None or v is None or parameter is None:
            return None
        factor = beside(factor, m.device)
        bound = MomentBound(factor, watched.limit.v_lost, watched.limit.m_lost)
        moments = check_state(m, v, bound).to(torch.float64)
        return torch.cat([moments, self._moved(watched, factor, parameter)])

    def _moved(self, watched: _Watched, factor: Number, now: torch.Tensor) -> torch.Tensor:
        if watched.slack is None:
            return torch.zeros(3, dtype=torch.float64, device=now.device)
        updates = torch.as_tensor(self._optimizer.state[watched.parameter]["step"])
        # to the device first: a CPU tensor stays there, and goes with tensors of every device
        if updates.device.type != "cpu":
            updates = updates.to(now.device, non_blocking=True)
        bound = step_bound(factor, watched.slack, watched.settings, updates.to(torch.float64))
        return check_step(watched.copy, now, bound)


def _part(row: torch.Tensor, piece: Slice) -> torch.Tensor:
    return row.narrow(0, piece.start, piece.stop - piece.start)
