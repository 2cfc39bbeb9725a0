"""Injector: flips bits in a training run at planned steps and keeps the record."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..digest.reference import words
from ..errors import InjectionError
from .fault import SITES, Draw, Fault, InjectionRecord, Site

JOURNAL = Path("inject") / "journal.jsonl"


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
        self._journal = Path(run) / JOURNAL
        self._step = first_step
        self._plan: list[Fault] = []
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._before_forward),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def add(self, fault: Fault) -> Injector:
        """Plan a fault.

        Raises:
            InjectionError: no such site or tensor, or an index or bit out of range.
        """
        if fault.site not in SITES:
            raise InjectionError(f"no site {fault.site!r}", next_step=f"one of {', '.join(SITES)}")
        if fault.tensor is not None:
            self._check(fault, self._parameter(fault.tensor))
        self._plan.append(fault)
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
        draw = Draw(self._seed, fault.site, fault.step, self._rank)
        name = fault.tensor or self._draw_tensor(draw)
        tensor = self._tensor(fault.site, self._parameter(name))
        index = draw.below(tensor.numel(), "index") if fault.index is None else fault.index
        width = 8 * tensor.element_size()
        bit = draw.below(width, "bit") if fault.bit is None else fault.bit
        before, after = flip_bit(tensor, index, bit)
        record = InjectionRecord(
            fault.site, fault.step, self._rank, self._seed, name, index, bit, before, after
        )
        self.records.append(record)
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def _fired_before(self, fault: Fault) -> bool:
        return any(
            (record.site, record.step, record.rank, record.seed)
            == (fault.site, fault.step, self._rank, self._seed)
            and fault.tensor in (None, record.tensor)
            for record in read_journal(self._journal.parent.parent)
        )

    def _draw_tensor(self, draw: Draw) -> str:
        names = list(self._parameters)
        return names[draw.by_size([self._parameters[n].numel() for n in names], "tensor")]

    def _parameter(self, name: str) -> torch.nn.Parameter:
        if name not in self._parameters:
            raise InjectionError(
                f"no parameter named {name!r}", next_step=f"one of {', '.join(self._parameters)}"
            )
        return self._parameters[name]

    def _tensor(self, site: Site, parameter: torch.nn.Parameter) -> torch.Tensor:
        if site == "weight":
            return parameter.data
        value = self._optimizer.state.get(parameter, {}).get(site)
        if not isinstance(value, torch.Tensor):
            raise InjectionError(f"the optimizer keeps no {site} at step {self._step}")
        return value

    def _check(self, fault: Fault, tensor: torch.Tensor) -> None:
        if fault.index is not None and not 0 <= fault.index < tensor.numel():
            raise InjectionError(
                f"index {fault.index} is outside {fault.tensor} of shape {list(tensor.shape)}"
            )
        if fault.bit is not None and not 0 <= fault.bit < 8 * tensor.element_size():
            raise InjectionError(f"bit {fault.bit} is outside {fault.tensor} of {tensor.dtype}")


def flip_bit(tensor: torch.Tensor, index: int, bit: int) -> tuple[int, int]:
    """Flip one bit in place, and read it back.

    Args:
        tensor: any strides; written through to its own memory.
        index: element of the flattened tensor, row by row.
        bit: 0 is the lowest.

    Returns:
        the element's bits before and after, unsigned.

    Raises:
        InjectionError: the element did not change as asked.
    """
    width = 8 * tensor.element_size()
    mask = (1 << width) - 1
    with torch.no_grad():
        place = torch.unravel_index(torch.tensor(index), tensor.shape) if tensor.dim() else ()
        element = tensor[place].reshape(1)
        before = int(words(element)[0]) & mask
        after = before ^ (1 << bit)
        signed = after - (1 << width) if after >> (width - 1) and width > 8 else after
        wanted = torch.tensor([signed], dtype=words(element).dtype, device=tensor.device)
        tensor[place] = wanted.view(tensor.dtype)[0]
        found = int(words(tensor[place].reshape(1))[0]) & mask
    if found != after:
        raise InjectionError(f"element {index} reads 0x{found:x} after writing 0x{after:x}")
    return before, after


def read_journal(run: Path) -> list[InjectionRecord]:
    """The injections that a run's folder records, in order; empty when there are none."""
    path = run / JOURNAL
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [InjectionRecord(**json.loads(line)) for line in lines]
