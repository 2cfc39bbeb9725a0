"""Injector: flips bits in a training run at planned steps and keeps the record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import InjectionError
from .bits import flip_bit, size_of
from .fault import SITES, Draw, Fault, InjectionRecord, Site, Touched
from .journal import append_journal, read_journal

__all__ = ["Injector", "flip_bit", "read_journal"]


class Injector:
    """Flips bits of parameters or Adam moments at rest.

    A fault fires in the forward pre-hook of its step's training forward, so the digest taken
    after the step before is of the sound bits, whatever the order in which guard and injector
    were attached.

    Args:
        model, optimizer: what is trained.
        seed: of everything that a Fault leaves open.
        run: folder that keeps the journal; a fault that stands in it does not fire again, so a
            resumed run is not hit twice.
        first_step: number of the first step that this process runs.

    Raises:
        InjectionError: the run's journal is damaged.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        seed: int,
        run: str | Path,
        first_step: int = 0,
    ) -> None:
        self.records: list[InjectionRecord] = []
        self._parameters = dict(model.named_parameters())
        self._optimizer = optimizer
        self._seed = seed
        self._rank = int(os.environ.get("RANK", 0))
        self._run = Path(run)
        self._journal = read_journal(self._run)
        self._step = first_step
        self._plan: list[Fault] = []
        self._numbers: dict[Fault, int] = {}
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._before_forward),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def add(self, fault: Fault) -> Injector:
        """Plan a fault.

        Raises:
            InjectionError: no such site or tensor, an index, bit or step out of range, or a fault
                that is planned already and would be undone by its double.
        """
        if fault.site not in SITES:
            raise InjectionError(f"no site {fault.site!r}", next_step=f"one of {', '.join(SITES)}")
        if fault.step < 0:
            raise InjectionError(f"no step {fault.step}", next_step="steps count from 0")
        if fault in self._plan:
            raise InjectionError(f"planned already: {fault}", next_step="give another index or bit")
        name = self._name(fault)
        self._check(fault, name, self._parameters[name])
        self._plan.append(fault)
        self._numbers[fault] = len(self._numbers)
        return self

    def remove(self) -> None:
        """Remove the hooks; planned faults no longer fire."""
        for handle in self._handles:
            handle.remove()

    def _before_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            return  # an evaluation, or the guard's shadow pass: not the training forward
        due = [fault for fault in self._plan if fault.step == self._step]
        for fault in due:
            self._plan.remove(fault)
            if not self._fired_before(fault):
                self._fire(fault)

    def _after_step(self, *_: Any) -> None:
        self._step += 1

    def _fire(self, fault: Fault) -> None:
        draw, name = self._draw(fault), self._name(fault)
        tensor = self._tensor(fault.site, self._parameters[name])
        self._check(fault, name, tensor)
        count, width = size_of(tensor)
        index = draw.below(count, "index") if fault.index is None else fault.index
        bit = draw.below(width, "bit") if fault.bit is None else fault.bit
        before, after = flip_bit(tensor, index, bit)
        record = InjectionRecord(
            self._numbers[fault],
            fault.site,
            fault.step,
            self._rank,
            self._seed,
            name,
            (Touched(index, before, after),),
        )
        self.records.append(record)
        append_journal(self._run, record)

    def _fired_before(self, fault: Fault) -> bool:
        """Whether another process fired it; what this one fires leaves the plan."""
        return any(
            (record.site, record.step, record.rank, record.seed)
            == (fault.site, fault.step, self._rank, self._seed)
            and fault.tensor in (None, record.tensor)
            and fault.index in (None, record.touched[0].index)
            and (fault.bit is None or [fault.bit] == record.touched[0].bits)
            for record in self._journal
        )

    def _draw(self, fault: Fault) -> Draw:
        return Draw(self._seed, fault.site, fault.step, self._rank)

    def _name(self, fault: Fault) -> str:
        if fault.tensor is None:
            names = list(self._parameters)
            sizes = [self._parameters[name].numel() for name in names]
            if not sum(sizes):
                raise InjectionError("the model has no parameter to inject into")
            return names[self._draw(fault).by_size(sizes, "tensor")]
        if fault.tensor not in self._parameters:
            raise InjectionError(
                f"no parameter named {fault.tensor!r}",
                next_step=f"one of {', '.join(self._parameters)}",
            )
        return fault.tensor

    def _tensor(self, site: Site, parameter: torch.nn.Parameter) -> torch.Tensor:
        if site == "weight":
            return parameter.data
        value = self._optimizer.state.get(parameter, {}).get(site)
        if not isinstance(value, torch.Tensor):
            raise InjectionError(f"the optimizer keeps no {site} at step {self._step}")
        return value

    def _check(self, fault: Fault, name: str, tensor: torch.Tensor) -> None:
        count, width = size_of(tensor)
        if not count:
            raise InjectionError(f"{name} of shape {list(tensor.shape)} has no element")
        if fault.index is not None and not 0 <= fault.index < count:
            raise InjectionError(
                f"index {fault.index} is outside {name} of shape {list(tensor.shape)}"
            )
        if fault.bit is not None and not 0 <= fault.bit < width:
            raise InjectionError(f"bit {fault.bit} is outside {name} of {tensor.dtype}")
