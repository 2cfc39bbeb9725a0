"""Where optimizers keep their step counters, and the bits that are there.

A counter is one number for each parameter, in host memory unless the optimizer is fused or
capturable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray

from ..compiled import compiled, pointer
from ..detect.counters import KIND
from ..digest.reference import words
from .placement import local

_IN_HOST: Final = {4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Bank:
    """Counters of one dtype on one device.

    Attributes:
        places: of each in the list of all counters.
        adds_one: whether its optimizer is known to add one at each update.
        table: addresses in host memory; None elsewhere.
        held: the counters' memory, so that no others ever lie there; empty if that is not known.
    """

    layers: tuple[int, ...]
    places: list[int]
    dtype: torch.dtype
    adds_one: bool
    table: NDArray[np.int64] | None = None
    held: tuple[torch.Tensor, ...] = ()

    def read(self, counters: list[Any]) -> NDArray[Any] | torch.Tensor:
        """Their bits; `counters` are all that there are, where they were."""
        if self.table is None:
            here = [local(counters[place]).detach().reshape(()) for place in self.places]
            return words(torch.stack(here))
        out = np.empty(len(self.table), dtype=_IN_HOST[self.dtype.itemsize])
        _gather(self.table, out)
        return out


@dataclass(frozen=True)
class Seen:
    """An optimizer's counters as they were last looked for.

    No state is held here: a script that replaces it wants its memory back.

    Attributes:
        states: how many parameters have a state.
        addresses: of their counters, 0 for what is none in plain memory; None if none has any.
        regular: whether each has one in plain memory.
    """

    states: int
    addresses: list[int] | None
    regular: bool

    def counters(self, optimizer: torch.optim.Optimizer) -> list[Any] | None:
        """Of each parameter, or None if they are not where they were."""
        states = optimizer.state
        if len(states) != self.states:
            return None
        if self.addresses is None:
            return []
        if not self.regular:
            found = counters_of(optimizer)
            return found if addresses_of(found) == self.addresses else None
        try:
            here: list[Any] = [state[KIND] for state in states.values()]
            return here if [one.data_ptr() for one in here] == self.addresses else None
        except (KeyError, TypeError, AttributeError, RuntimeError):  # no tensor, or not as it was
            return None


def bank_of(key: tuple[Any, ...], members: list[tuple[int, int, torch.Tensor]]) -> Bank:
    """The bank of counters of one kind.

    Args:
        key: their device, their dtype, whether they are words of host memory, and whether their
            optimizer adds one at each update.
        members: of each the layer's number, the place in the list of all, and the counter.
    """
    _, dtype, plain, adds_one = key
    layers = tuple(layer for layer, _, _ in members)
    places = [place for _, place, _ in members]
    counters = [counter for _, _, counter in members]
    known = all(type(counter) is torch.Tensor for counter in counters)
    held = tuple(counter.detach() for counter in counters) if known else ()
    table = np.array([one.data_ptr() for one in held], dtype=np.int64) if plain else None
    return Bank(layers, places, dtype, adds_one, table, held)


def counters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    """The counter of each parameter that has a state, None where that has none."""
    states: list[Any] = list(optimizer.state.values())
    found = [state.get(KIND) if isinstance(state, Mapping) else None for state in states]
    return [one if isinstance(one, torch.Tensor) and _is_one(one) else None for one in found]


def addresses_of(counters: list[torch.Tensor | None]) -> list[int]:
    """Of those in plain memory, whatever their device; 0 for others."""
    return [one.data_ptr() if type(one) is torch.Tensor else 0 for one in counters]


def _is_one(counter: torch.Tensor) -> bool:
    part = local(counter)
    return part.numel() == 1 and part.layout is torch.strided and not part.is_meta


def is_plain(counter: torch.Tensor) -> bool:
    """Whether its bits are a word of host memory."""
    plain = type(counter) is torch.Tensor and counter.is_cpu and not counter.is_complex()
    return plain and counter.element_size() in _IN_HOST


@compiled()
def _gather(addresses: Any, out: Any) -> None:
    for place in range(len(addresses)):
        out[place] = carray(pointer(addresses[place]), 1, out.dtype)[0]
