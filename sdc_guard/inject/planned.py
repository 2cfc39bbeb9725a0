"""From a fault to the words of one tensor that it hits, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InjectionError
from ..signals.placement import local
from .bits import refuse_unfit
from .fault import Draw, Fault
from .masks import OF_BITS, Masks, masks
from .patterns import elements, flat_index
from .shards import held_by_this_rank

NO_END: Final = 2**63 - 1


@dataclass(frozen=True)
class Planned:
    """What a fault does to one tensor.

    Attributes:
        fault: its number.
        words: int64: indices of the words that it hits, in the tensor that it is applied to,
            flattened row by row. Empty on a rank that holds none of them. Of a complex element
            both are there, the real half first, also where one of them stays as it is.
        recorded: int64: the index of each word's element, in the whole tensor where that is
            distributed.
        masks: what is done to the word of an element; of a complex one, to each half.
        first_step, last_step: between which it may fire, both included.
        probability: of each of these steps.
        key: of its draws; see `operation.due`.
        clipped: whether its pattern reached beyond the tensor's edge.
    """

    fault: int
    words: NDArray[np.int64]
    recorded: NDArray[np.int64]
    masks: tuple[Masks, ...]
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
    whole, clipped = _elements(fault, tensor, draw, name)
    found = held_by_this_rank(whole, tensor, name)
    here = found >= 0
    made = _masks(fault, tensor.dtype, _bits(fault, part, draw, name), name)
    halves = np.arange(len(made), dtype=np.int64)
    first, last = _steps(fault)
    return Planned(
        number,
        (found[here][:, None] * len(made) + halves).ravel(),
        whole[here].repeat(len(made)),
        made,
        first,
        last,
        _probability(fault),
        draw.below(1 << 64, f"occurrence of fault {number}"),
        clipped,
    )


def _elements(
    fault: Fault, tensor: torch.Tensor, draw: Draw, name: str
) -> tuple[NDArray[np.int64], bool]:
    """Indices of elements in the whole tensor, and whether the pattern was clipped."""
    shape = list(tensor.shape)
    index = draw.below(tensor.numel(), "index") if fault.index is None else fault.index
    return elements(
        fault.pattern,
        flat_index(index, shape, name),
        shape,
        height=fault.height,
        width=fault.width,
        period=fault.period,
        name=name,
    )


def _masks(fault: Fault, dtype: torch.dtype, bits: tuple[int, ...], name: str) -> tuple[Masks, ...]:
    """What is done to each word of an element: one, or the halves of a complex number.

    The bits of a complex number count through its real half, and on through the imaginary one.
    """
    change, value, exponent = fault.change, fault.value, fault.exponent
    if not dtype.is_complex:
        return (masks(change, dtype, bits=bits, value=value, exponent=exponent, name=name),)
    half = 4 * dtype.itemsize
    if change not in OF_BITS:
        real = masks(change, dtype, bits=bits, value=value, exponent=exponent, name=name)
        return real, masks("zero", dtype) if change == "set" else real
    if outside := [bit for bit in bits if not 0 <= bit < 2 * half]:
        raise InjectionError(
            f"bit {outside[0]} is outside {name} of {dtype}", next_step=f"0 to {2 * half - 1}"
        )
    low = [bit for bit in bits if bit < half]
    high = [bit - half for bit in bits if bit >= half]
    as_it_is = Masks((1 << half) - 1, 0, 0)
    made = [masks(change, dtype, bits=x, name=name) if x else as_it_is for x in (low, high)]
    # no bit at all is refused as of any other dtype
    return tuple(made) if bits else (masks(change, dtype, name=name),)


def _bits(fault: Fault, tensor: torch.Tensor, draw: Draw, name: str) -> tuple[int, ...]:
    if fault.bit is not None and fault.bits is not None:
        raise InjectionError(f"a fault of {name} has both bit and bits", next_step="give one")
    if fault.bits is not None:
        return fault.bits
    if fault.bit is not None:
        return (fault.bit,)
    if fault.change in OF_BITS:
        return (draw.below(8 * tensor.element_size(), "bit"),)
    return ()


def _steps(fault: Fault) -> tuple[int, int]:
    if fault.recurrence == "once":
        return fault.step, fault.step
    return fault.step, NO_END if fault.until is None else fault.until


def _probability(fault: Fault) -> float:
    if not 0 <= fault.probability <= 1:
        raise InjectionError(f"probability {fault.probability}", next_step="0 to 1")
    return fault.probability if fault.recurrence == "intermittent" else 1.0
