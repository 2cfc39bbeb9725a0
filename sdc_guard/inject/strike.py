"""One fault on one tensor, now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..signals.placement import local
from .device_plan import DevicePlan
from .fault import Draw, Fault, Touched
from .planned import plan_fault


@dataclass
class Strike:
    """What was done to a tensor, on its way from the device.

    Attributes:
        name: of the tensor.
        step: at which it was done.
        backend, note: for the record.
        plan: what was done, and its log.
    """

    name: str
    step: int
    backend: str
    note: str
    plan: DevicePlan
    event: Any = None
    _touched: tuple[Touched, ...] | None = None

    @property
    def arrived(self) -> bool:
        """Whether the record can be read without waiting for a device."""
        return self._touched is not None or self.event is None or bool(self.event.query())

    def touched(self) -> tuple[Touched, ...]:
        """The words that were written to; waits for the device.

        Raises:
            InjectionError: a word read back as something else than had been written to it.
        """
        if self._touched is None:
            (hits,) = self.plan.hits().values()
            self._touched = hits.touched
        return self._touched


def strike(
    tensor: torch.Tensor, name: str, fault: Fault, draw: Draw, *,
    number: int, step: int, backend: str, note: str,
) -> Strike | None:  # fmt: skip
    """Do to a tensor, in place, what a fault says.

    Nothing waits for a device, and autograd sees nothing of it.

    Args:
        tensor: this rank's, or a distributed one, of which this rank's part is written to.
        draw: of what the fault leaves open.

    Returns:
        None where this rank holds none of the elements.

    Raises:
        InjectionError: it cannot be done to this tensor.
    """
    now = replace(fault, recurrence="once", step=step, until=None, probability=1.0)
    planned = plan_fault(now, number, tensor.detach(), draw, name)
    if not len(planned.words):
        return None
    part = local(tensor)
    plan = DevicePlan([planned], part.dtype, part.device, name)
    plan.apply(part, torch.tensor(step, device=part.device))
    if planned.clipped:
        note = "; ".join(filter(None, [note, "the pattern ends at the tensor's edge"]))
    return Strike(name, step, backend, note, plan, _event(part.device))


def check_tensor(tensor: torch.Tensor, name: str, fault: Fault, draw: Draw) -> None:
    """Refuse what cannot be done to a tensor of this shape and dtype.

    Raises:
        InjectionError: names tensor, shape or dtype.
    """
    plan_fault(fault, 0, tensor.detach(), draw, name)


def _event(device: torch.device) -> Any:
    """What tells that the work given to a device so far is done; None where it is at once."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
