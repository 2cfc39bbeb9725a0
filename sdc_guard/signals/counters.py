"""Optimizers' step counters, read as bits after each step and again before the next one.

A counter is one number for each parameter, in host memory unless the optimizer is fused or
capturable. Those in host memory are compared where they are read; what is read of a device stays
there, to be compared when its copy has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray

from ..compiled import compiled, pointer
from ..detect.counters import KIND, one_more, wrong_places
from ..digest.reference import words
from .placement import local

_IN_HOST: Final = {4: np.uint32, 8: np.uint64}
_NUMBERS: Final = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True)
class CounterPair:
    """Counters at two moments, perhaps still on their device.

    Attributes:
        layers: number of each one's layer.
        dtype: of the counters, by name.
        bits: integers, shape (2, len(layers)).
        within: whether a step lies between the two moments.
    """

    layers: tuple[int, ...]
    dtype: str
    bits: NDArray[Any] | torch.Tensor
    within: bool


@dataclass(frozen=True)
class _Bank:
    """Counters of one dtype on one device, and where they are.

    Attributes:
        states: of the optimizer, of each parameter.
        adds_one: whether its optimizer is known to add one at each update.
        table: addresses in host memory, as a list and for the compiled function; None elsewhere.
        held: what lies there, so that nothing else ever does.
    """

    layers: tuple[int, ...]
    states: list[dict[str, Any]]
    dtype: torch.dtype
    adds_one: bool
    table: tuple[list[int], NDArray[np.int64]] | None
    held: list[torch.Tensor]

    def read(self) -> NDArray[Any] | torch.Tensor | None:
        """Their bits, or None if they are not where they were."""
        if self.table is None:
            counters = [local(state[KIND]).detach() for state in self.states]
            return words(torch.stack([counter.reshape(()) for counter in counters]))
        # what lies at an address that is known, and is a counter's now, can be read
        if [state[KIND].data_ptr() for state in self.states] != self.table[0]:
            return None
        out = np.empty(len(self.states), dtype=_IN_HOST[self.dtype.itemsize])
        _gather(self.table[1], out)
        return out


@dataclass(frozen=True)
class _Read:
    """What was read of a bank."""

    bank: _Bank
    bits: NDArray[Any] | torch.Tensor


class StepCounters:
    """The counters of these parameters, as a step left them and as the next one found them.

    A counter that was not there at one of two moments is not compared.

    Args:
        owned: number of a layer, its parameter, and the optimizer that trains it.
    """

    def __init__(
        self, owned: Iterable[tuple[int, torch.nn.Parameter, torch.optim.Optimizer]]
    ) -> None:
        self._layers = {(id(o), id(parameter)): layer for layer, parameter, o in owned}
        self._optimizers = list({id(o): o for _, _, o in owned}.values())
        self._seen: list[list[Any]] = []  # values of each optimizer's state
        self._banks: list[_Bank] = []
        self._left: list[_Read] = []
        self._found: list[_Read] = []

    def find(self) -> list[CounterPair]:
        """Read them before a step; those that are not what was left, or not known to be."""
        left, self._left = self._left, []
        self._found = self._read()
        return _pairs(left, self._found, within=False)

    def leave(self) -> list[CounterPair]:
        """Read them after a step; those that no update made, or that are not known to be."""
        found, self._found = self._found, []
        self._left = self._read()
        return _pairs(found, self._left, within=True)

    def left(self) -> dict[int, tuple[torch.Tensor, int]]:
        """Of each layer the counter and the bits that the newest step left in it.

        Waits for a device.
        """
        held: dict[int, tuple[torch.Tensor, int]] = {}
        for read in self._left:
            bits = _unsigned(read.bits).tolist()
            for layer, state, value in zip(read.bank.layers, read.bank.states, bits, strict=True):
                if isinstance(counter := state.get(KIND), torch.Tensor):
                    held[layer] = local(counter), value
        return held

    def _read(self) -> list[_Read]:
        """All of them; where something is not as it was, they are looked for again."""
        if not self._as_seen():
            self._look()
        try:
            read = [(bank, bank.read()) for bank in self._banks]
        except (KeyError, AttributeError):
            read = [(bank, None) for bank in self._banks]
        if any(bits is None for _, bits in read):
            self._look()
            read = [(bank, bank.read()) for bank in self._banks]
        return [_Read(bank, bits) for bank, bits in read if bits is not None]

    def _as_seen(self) -> bool:
        for optimizer, seen in zip(self._optimizers, self._seen, strict=False):
            states = optimizer.state
            if len(states) != len(seen) or not all(map(is_, states.values(), seen)):
                return False
        return len(self._seen) == len(self._optimizers)

    def _look(self) -> None:
        groups: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
        self._seen = [list(optimizer.state.values()) for optimizer in self._optimizers]
        for optimizer in self._optimizers:
            adds_one = type(optimizer).__module__.startswith("torch.optim.")
            for parameter, state in optimizer.state.items():
                layer = self._layers.get((id(optimizer), id(parameter)))
                counter = state.get(KIND) if isinstance(state, Mapping) else None
                if layer is None or not isinstance(counter, torch.Tensor) or not _is_one(counter):
                    continue
                plain = _is_plain(counter)
                key = (counter.device, counter.dtype, plain, adds_one)
                groups.setdefault(key, []).append((layer, state))
        self._banks = [_bank(key, members) for key, members in groups.items()]


def _bank(key: tuple[Any, ...], members: list[tuple[int, dict[str, Any]]]) -> _Bank:
    _, dtype, plain, adds_one = key
    layers, states = tuple(layer for layer, _ in members), [state for _, state in members]
    held = [state[KIND].detach() for state in states] if plain else []
    addresses = [counter.data_ptr() for counter in held]
    table = (addresses, np.array(addresses, dtype=np.int64)) if plain else None
    return _Bank(layers, states, dtype, adds_one, table, held)


def _is_one(counter: torch.Tensor) -> bool:
    part = local(counter)
    return part.numel() == 1 and part.layout is torch.strided and not part.is_meta


def _is_plain(counter: torch.Tensor) -> bool:
    """Whether its bits are a word of host memory."""
    plain = type(counter) is torch.Tensor and counter.is_cpu and not counter.is_complex()
    return plain and counter.element_size() in _IN_HOST


def _pairs(before: list[_Read], after: list[_Read], *, within: bool) -> list[CounterPair]:
    """What of two readings is not known to be as it should be."""
    if len(before) != len(after) or any(
        one.bank is not two.bank for one, two in zip(before, after, strict=True)
    ):
        before, after = _aligned(before, after)
    pairs = []
    for one, two in zip(before, after, strict=True):
        if within and not (one.bank.adds_one and two.bank.adds_one):
            continue
        pair = _pair(one, two, within=within)
        if pair is not None:
            pairs.append(pair)
    return pairs


def _pair(one: _Read, two: _Read, *, within: bool) -> CounterPair | None:
    dtype = str(two.bank.dtype).removeprefix("torch.")
    before, after = one.bits, two.bits
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        both = torch.stack([torch.as_tensor(before), torch.as_tensor(after)])
        return CounterPair(two.bank.layers, dtype, both, within)
    due = one_more(before, dtype) if within and two.bank.dtype in _NUMBERS else before
    if due.tobytes() == after.tobytes():  # the usual case, in the least time
        return None
    bits = np.stack([before, after])
    if not wrong_places(bits, dtype, within=within).size:
        return None
    return CounterPair(two.bank.layers, dtype, bits, within)


def _aligned(before: list[_Read], after: list[_Read]) -> tuple[list[_Read], list[_Read]]:
    """The counters that both have, each of the same dtype on the same device, in one order."""
    one, two = [], []
    for new in after:
        there = set(new.bank.layers)
        for old in before:
            common = [layer for layer in old.bank.layers if layer in there]
            if common and _kind(old) == _kind(new):
                one.append(_part(old, common))
                two.append(_part(new, common))
    return one, two


def _kind(read: _Read) -> tuple[Any, ...]:
    device = read.bits.device if isinstance(read.bits, torch.Tensor) else None
    return read.bank.dtype, device


def _part(read: _Read, layers: list[int]) -> _Read:
    place = {layer: place for place, layer in enumerate(read.bank.layers)}
    places = [place[layer] for layer in layers]
    bank = _Bank(
        tuple(layers), [read.bank.states[at] for at in places], read.bank.dtype,
        read.bank.adds_one, None, [],
    )  # fmt: skip
    if isinstance(read.bits, np.ndarray):
        return _Read(bank, read.bits[places])
    rows = read.bits.unbind()
    return _Read(bank, torch.stack([rows[at] for at in places]))


def _unsigned(bits: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    found: NDArray[Any] = bits.cpu().numpy() if isinstance(bits, torch.Tensor) else bits
    return found.view(f"u{found.itemsize}")


@compiled()
def _gather(addresses: Any, out: Any) -> None:
    for place in range(len(addresses)):
        out[place] = carray(pointer(addresses[place]), 1, out.dtype)[0]
