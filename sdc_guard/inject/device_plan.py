"""DevicePlan: what faults do to one tensor, kept on its device, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..device_tables import upload
from ..digest.reference import MASK64, signed64, unsigned
from ..errors import InjectionError
from ..signals.placement import local
from .bits import as_integers, memory, offsets
from .corrupt import corrupt
from .fault import Touched
from .formats import format_of
from .operation import (
    AFTER,
    BEFORE,
    CERTAIN,
    FIRED,
    LOG_COLUMNS,
    PLAN_COLUMNS,
    STEP,
    UNLIKE,
    write,
)
from .planned import Planned


@dataclass(frozen=True)
class Hits:
    """What a fault has done so far.

    Attributes:
        touched: the elements that it wrote to last, by ascending index.
        fired: at how many steps.
        last_step: the last of them; None if there is none.
    """

    touched: tuple[Touched, ...]
    fired: int
    last_step: int | None


class DevicePlan:
    """Faults of one tensor, and their log, on its device.

    Args:
        planned: they may hit the same word at different steps alone.
        dtype: of the tensor.
        device: of the tensor.
        name: of the tensor, for messages.

    Attributes:
        log: int64 (words, 5), on the device; a copy of it may be given to `hits`.

    Raises:
        InjectionError: two faults may hit the same word at one step.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        dtype: torch.dtype,
        device: torch.device,
        name: str = "the tensor",
    ) -> None:
        format_of(dtype, name)
        _refuse_doubles(planned, name)
        self.log = torch.zeros((_count(planned), LOG_COLUMNS), dtype=torch.int64, device=device)
        self._planned = tuple(planned)
        self._dtype = dtype
        self._name = name
        self._plan = upload(_rows(planned), device)
        self._never = not len(self.log)
        self._first = min((x.first_step for x in planned), default=0)
        self._last = max((x.last_step for x in planned), default=-1)

    def apply(self, tensor: torch.Tensor, step: torch.Tensor) -> None:
        """Do what is planned for a step; nothing waits for the device.

        Args:
            tensor: of the plan's dtype, on its device; any strides. It is written to past
                autograd's version counter. Of a distributed one this rank's part is.
            step: int64 scalar on the same device.

        Raises:
            InjectionError: a tensor of another dtype, or one that has no memory of its own for
                each element; it names tensor and dtype.
        """
        self._refuse_other(tensor)
        if step.device != self.log.device:
            raise InjectionError(f"the step is on {step.device}, its faults on {self.log.device}")
        if self._is_idle(step):
            return
        corrupt(local(tensor).data, self._plan, step, self.log)  # detach() would tell autograd

    def hits(self, log: torch.Tensor | None = None) -> dict[int, Hits]:
        """What each fault has done, by its number; waits for the device.

        Args:
            log: a copy of `log` in host memory, of an earlier moment; then nothing waits.

        Raises:
            InjectionError: a word read back as something else than what had been written to it.
        """
        rows = (self.log if log is None else log).cpu().numpy()
        found, start = {}, 0
        for planned in self._planned:
            part = rows[start : start + len(planned.words)]
            start += len(planned.words)
            self._refuse_unlike(planned, part)
            found[planned.fault] = _hits(planned, part, self._dtype)
        return found

    def revert(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Put elements back to what they were before their fault fired last; waits for the device.

        One that is not what was injected any more is left alone: it has been written to since,
        or the tensor has become too small to have it.

        Args:
            tensor: as of `apply`.

        Returns:
            indices of those that were left alone, as recorded.

        Raises:
            InjectionError: see `apply`; or a word read back as something else than what had been
                written to it.
        """
        self._refuse_other(tensor)
        integers = as_integers(local(tensor))
        if not integers.numel():
            return tuple(sorted({x.index for hit in self.hits().values() for x in hit.touched}))
        row, log = memory(integers), self.log
        words = upload(_joined([x.words for x in self._planned]), log.device)
        recorded = _joined([x.recorded for x in self._planned])
        places = offsets(integers, words.clamp(max=integers.numel() - 1))
        left = torch.zeros(len(words), dtype=torch.bool, device=log.device)
        parts = _parts(self._dtype)
        # the newest first: a later fault may have hit the same word
        fired = log[:, FIRED] > 0
        for step in sorted(set(log[fired, STEP].tolist()), reverse=True):
            of_step = fired & (log[:, STEP] == step)
            there = unsigned(row[places])
            same = of_step & (there == log[:, AFTER]) & (words < integers.numel())
            same = same.view(-1, parts).all(1).repeat_interleave(parts)  # an element, or nothing
            found = write(row, places, there, log[:, BEFORE], same)
            if bool((same & (found != log[:, BEFORE])).any()):
                raise InjectionError(f"a word of {self._name} did not take its old value")
            left |= of_step & ~same
        return tuple(sorted({int(x) for x in recorded[left.cpu().numpy()]}))

    def _refuse_other(self, tensor: torch.Tensor) -> None:
        for what, found, planned in (
            ("of", tensor.dtype, self._dtype),
            ("on", tensor.device, self.log.device),
        ):
            if found != planned:
                raise InjectionError(
                    f"{self._name} is {what} {found}, and its faults were planned for {planned}"
                )

    def _is_idle(self, step: torch.Tensor) -> bool:
        """Whether the host knows without waiting that nothing can fire."""
        if self._never:
            return True
        if torch.compiler.is_compiling() or step.device.type != "cpu":
            return False
        return not self._first <= int(step) <= self._last

    def _refuse_unlike(self, planned: Planned, rows: NDArray[Any]) -> None:
        wrong = np.flatnonzero(rows[:, UNLIKE])
        if len(wrong):
            index, word = planned.recorded[wrong[0]], int(rows[wrong[0], AFTER])
            raise InjectionError(
                f"element {index} of {self._name} read back as 0x{word & MASK64:x}, "
                f"not as what fault {planned.fault} had written",
                next_step="the tensor's memory does not hold what is written to it",
            )


def _count(planned: Sequence[Planned]) -> int:
    return sum(len(x.words) for x in planned)


def _joined(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *rows])


def _rows(planned: Sequence[Planned]) -> NDArray[np.int64]:
    """The plan: columns as `operation` has them."""
    found = np.zeros((_count(planned), PLAN_COLUMNS), np.int64)
    start = 0
    for one in planned:
        part = found[start : start + len(one.words)]
        start += len(one.words)
        part[:, 0] = one.words
        for half, masks in enumerate(one.masks):
            part[half :: len(one.masks), 1:] = [
                *map(signed64, masks[:3]), masks.exponent, one.first_step, one.last_step,
                round(one.probability * CERTAIN), signed64(one.key),
            ]  # fmt: skip
    return found


def _parts(dtype: torch.dtype) -> int:
    """Words of an element; they follow each other in a plan."""
    return 2 if dtype.is_complex else 1


def _hits(planned: Planned, rows: NDArray[np.int64], dtype: torch.dtype) -> Hits:
    fired = rows[:, FIRED] > 0
    parts, width = _parts(dtype), format_of(dtype).width
    rows, indices = rows[fired], planned.recorded[fired][::parts]
    before, after = _numbers(rows[:, BEFORE], parts, width), _numbers(rows[:, AFTER], parts, width)
    touched = tuple(
        Touched(int(indices[at]), before[at], after[at])
        for at in np.argsort(indices, kind="stable")
    )
    last = int(rows[:, STEP].max()) if touched else None
    return Hits(touched, int(rows[:, FIRED].max(initial=0)), last)


def _numbers(words: NDArray[np.int64], parts: int, width: int) -> list[int]:
    """Elements as unsigned numbers, the first of their words lowest."""
    mask = (1 << width) - 1
    return [
        sum((int(word) & mask) << width * part for part, word in enumerate(element))
        for element in words.reshape(-1, parts)
    ]


def _refuse_doubles(planned: Sequence[Planned], name: str) -> None:
    """Refuse words that two rows may write to at one step."""
    if not planned:
        return
    words = _joined([x.words for x in planned])
    first = np.concatenate([np.full(len(x.words), x.first_step) for x in planned])
    last = np.concatenate([np.full(len(x.words), x.last_step) for x in planned])
    order = np.lexsort((first, words))
    words, first, last = words[order], first[order], last[order]
    recorded = _joined([x.recorded for x in planned])[order]
    # sorted by first step, so that those that overlap have neighbours that do
    double = np.flatnonzero((words[1:] == words[:-1]) & (first[1:] <= last[:-1]))
    if len(double):
        raise InjectionError(
            f"element {recorded[double[0]]} of {name} is hit twice at step {first[double[0] + 1]}",
            next_step="give another index, or one fault with several bits",
        )
