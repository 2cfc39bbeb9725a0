"""From a fault to the words of one tensor that it hits, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InjectionError
from ..signals.placement import local
from .bits import refuse_unfit, size_of
from .fault import Draw, Fault
from .masks import Masks, masks
from .patterns import elements, flat_index
from .shards import held_by_this_rank

NO_END: Final = 2**63 - 1


@dataclass(frozen=True)
class Planned:
    """What a fault does to one tensor.

    Attributes:
        fault: its number.
        words: int64: indices of the words that it hits, in the tensor that it is applied to,
            flattened row by row. Empty on a rank that holds none of them.
        recorded: int64: the same words' indices in the whole tensor, where that is distributed.
        masks: what is done to each.
        first_step, last_step: between which it may fire, both included.
        probability: of each of these steps.
        key: of its draws; see `operation.due`.
        clipped: whether its pattern reached beyond the tensor's edge.
    """

    fault: int
    words: NDArray[np.int64]
    recorded: NDArray[np.int64]
    masks: Masks
    first_step: int
    last_step: int
    probability: float = 1.0
    key: int = 0
    clipped: bool = False


def plan_fault(
    fault: Fault, number: int, tensor: torch.Tensor, draw: Draw, name: str = "the tensor"
) -> Planned:
    """What a fault does to a tensor; an open index or bit is drawn.

    Args:
        number: of the fault.
        tensor: that it hits, or one of its shape, strides and dtype. Of a distributed one the
            index is of the whole tensor, and the words are those of this rank's part.
        draw: with the fault's seed, site, step and rank; ranks that are to hit the same element
            need the same.
        name: of the tensor, for messages.

    Raises:
        InjectionError: what the fault asks cannot be done to this tensor; it names it.
    """
    part = local(tensor)
    refuse_unfit(part, name)
    if not tensor.numel():
        raise InjectionError(f"{name} of shape {list(tensor.shape)} has no element")
    whole, parts, clipped = _words(fault, tensor, draw, name)
    found = held_by_this_rank(whole // parts, tensor, name)
    here = found >= 0
    first, last = _steps(fault)
    return Planned(
        number,
        (found * parts + whole % parts)[here],
        whole[here],
        masks(
            fault.change,
            tensor.dtype,
            bits=_bits(fault, part, draw, name),
            value=fault.value,
            exponent=fault.exponent,
            name=name,
        ),
        first,
        last,
        _probability(fault),
        draw.below(1 << 64, f"occurrence of fault {number}"),
        clipped,
    )


def _words(
    fault: Fault, tensor: torch.Tensor, draw: Draw, name: str
) -> tuple[NDArray[np.int64], int, bool]:
    """Indices of words in the whole tensor, words of an element, and whether it was clipped.

    Of a complex tensor a flat index is one of words, and a place may name the half as well. A
    pattern hits the same half of each element.
    """
    shape = list(tensor.shape)
    parts = 2 if tensor.is_complex() else 1
    words_shape = [*shape, 2] if parts == 2 else shape
    index = fault.index
    if index is None:
        index = draw.below(parts * tensor.numel(), "index")
    elif isinstance(index, tuple) and parts == 2 and len(index) == len(shape):
        index = (*index, 0)
    word = flat_index(index, words_shape, name)
    found = elements(
        fault.pattern,
        word // parts,
        shape,
        height=fault.height,
        width=fault.width,
        period=fault.period,
        name=name,
    )
    return found.indices * parts + word % parts, parts, found.clipped


def _bits(fault: Fault, tensor: torch.Tensor, draw: Draw, name: str) -> tuple[int, ...]:
    if fault.bit is not None and fault.bits is not None:
        raise InjectionError(f"a fault of {name} has both bit and bits", next_step="give one")
    if fault.bits is not None:
        return fault.bits
    if fault.bit is not None:
        return (fault.bit,)
    if fault.change in ("flip", "stuck_at_0", "stuck_at_1"):
        return (draw.below(size_of(tensor)[1], "bit"),)
    return ()


def _steps(fault: Fault) -> tuple[int, int]:
    if fault.recurrence == "once":
        return fault.step, fault.step
    return fault.step, NO_END if fault.until is None else fault.until


def _probability(fault: Fault) -> float:
    if not 0 <= fault.probability <= 1:
        raise InjectionError(f"probability {fault.probability}", next_step="0 to 1")
    return fault.probability if fault.recurrence == "intermittent" else 1.0
