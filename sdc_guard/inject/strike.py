"""One fault on one tensor, now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from ..device_tables import upload
from ..errors import InjectionError
from ..evidence import HostCopy
from ..signals.placement import local
from .bits import as_integers, memory, offsets
from .device_plan import DevicePlan
from .fault import Draw, Fault, Touched
from .operation import AFTER
from .planned import Planned, plan_fault

_ATTEMPTS: Final = 10_000  # a rank that holds one in a thousand elements is found as good as always


@dataclass
class Strike:
    """What was done to a tensor, on its way from the device.

    Attributes:
        name: of the tensor.
        step: at which it was done.
        backend, note: for the record.
        plan: what was done.
        log: the plan's, after it was done.
    """

    name: str
    step: int
    backend: str
    note: str
    plan: DevicePlan
    log: HostCopy
    _touched: tuple[Touched, ...] | None = None

    @property
    def arrived(self) -> bool:
        """Whether the record can be read without waiting for a device."""
        return self.log.ready()

    def touched(self) -> tuple[Touched, ...]:
        """The words that were written to; waits for the device.

        Raises:
            InjectionError: a word read back as something else than had been written to it.
        """
        if self._touched is None:
            (hits,) = self.plan.hits(self.log.get()).values()
            self._touched = hits.touched
        return self._touched


def strike(
    tensor: torch.Tensor, name: str, fault: Fault, draw: Draw, *,
    number: int, step: int, backend: str, note: str, below: int | None = None,
) -> Strike | None:  # fmt: skip
    """Do to a tensor, in place, what a fault says.

    Nothing waits for a device, and autograd sees nothing of it.

    Args:
        tensor: this rank's, or a distributed one, of which this rank's part is written to.
        draw: of what the fault leaves open.
        below: what the new words are reduced by, as unsigned numbers; None for as they are.

    Returns:
        None where this rank holds none of the elements.

    Raises:
        InjectionError: it cannot be done to this tensor.
    """
    now = replace(fault, recurrence="once", step=step, until=None, probability=1.0)
    planned = _held(now, number, tensor.detach(), draw, name)
    if not len(planned.words):
        return None
    part = local(tensor)
    plan = DevicePlan([planned], part.dtype, part.device, name)
    plan.apply(part, torch.full((), step, dtype=torch.int64, device=part.device))
    notes = [note] if note else []
    if below is not None:
        _keep_below(below, part, planned, plan)
        notes.append(f"kept below {below}, the size of the model's largest embedding")
    if planned.clipped:
        notes.append("the pattern ends at the tensor's edge")
    note = "; ".join(notes)
    return Strike(name, step, backend, note, plan, HostCopy(plan.log))


def check_tensor(tensor: torch.Tensor, name: str, fault: Fault, draw: Draw) -> None:
    """Refuse what cannot be done to a tensor of this shape and dtype.

    Raises:
        InjectionError: names tensor, shape or dtype.
    """
    plan_fault(fault, 0, tensor.detach(), draw, name)


def _held(fault: Fault, number: int, tensor: torch.Tensor, draw: Draw, name: str) -> Planned:
    """What a fault does; one that is for one rank and open is drawn until that rank holds it."""
    planned = plan_fault(fault, number, tensor, draw, name)
    part = local(tensor)
    if fault.rank is None or len(planned.words) or part is tensor:
        return planned
    if fault.index is None and part.numel():
        for attempt in range(1, _ATTEMPTS):
            index = draw.below(tensor.numel(), f"index {attempt}")
            planned = plan_fault(replace(fault, index=index), number, tensor, draw, name)
            if len(planned.words):
                return planned
    raise InjectionError(f"rank {fault.rank} holds no such element of {name}")


def _keep_below(limit: int, part: torch.Tensor, planned: Planned, plan: DevicePlan) -> None:
    """Reduce the words that were written to, and their record."""
    integers = as_integers(part)
    row = memory(integers)
    places = offsets(integers, upload(planned.words, part.device))
    row[places] = row[places].remainder(limit)
    plan.log[:, AFTER] = row[places].to(torch.int64)
