"""Optimizers' step counters, read as bits after a step and again before the next one.

Those in host memory are compared where they are read; what is read of a device stays
there, to be compared when its copy has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..compiled import compiled
from ..detect.counters import wrong_places
from .counter_banks import Bank, Seen, addresses_of, bank_of, counters_of, is_plain
from .placement import local
from .rotation import Rotation

_NUMBERS: Final = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class CounterPair:
    """Counters at two moments, perhaps still on their device.

    Attributes:
        layers: number of each one's layer.
        dtype: of the counters, by name.
        bits: integers, shape (2, len(layers)).
        steps: how many lie between the two moments.
    """

    layers: tuple[int, ...]
    dtype: str
    bits: NDArray[Any] | torch.Tensor
    steps: int


@dataclass(frozen=True)
class _Read:
    """What was read of a bank."""

    bank: Bank
    bits: NDArray[Any] | torch.Tensor


class StepCounters:
    """The counters of these parameters, as a step left them and as the next one found them.

    A counter that was not there at one of two moments is not compared, and over several steps none
    that may be another one by then.

    Args:
        owned: number of a layer, its parameter, and the optimizer that trains it.
        rotation: says after which steps they are read.
    """

    def __init__(
        self,
        owned: Iterable[tuple[int, torch.nn.Parameter, torch.optim.Optimizer]],
        rotation: Rotation,
    ) -> None:
        self._layers = {(id(o), id(parameter)): layer for layer, parameter, o in owned}
        self._optimizers = list({id(o): o for _, _, o in owned}.values())
        self._rotation = rotation
        self._seen: list[Seen] = []
        self._banks: list[Bank] = []
        self._left: list[_Read] = []
        self._found: list[_Read] = []
        self._steps = 0  # begun since they were found

    def find(self) -> list[CounterPair]:
        """Read them before a step; those that are not what was left, or not known to be."""
        left, self._left = self._left, []
        self._steps += 1
        if not (left or self._rotation.whole):
            return []
        self._found, pairs = self._compared(left, 0)
        self._steps = 1
        return pairs

    def leave(self) -> list[CounterPair]:
        """Read them after a step; those that no updates made, or that are not known to be."""
        if not self._rotation.counters_due():
            return []
        found, self._found = self._found, []
        self._left, pairs = self._compared(found, self._steps)
        return pairs

    def left(self) -> dict[int, tuple[torch.Tensor, int]]:
        """Of each layer the counter and the bits in it: as the newest step left them, if known.

        Nothing of them if any is not where it was. Waits for a device.
        """
        held: dict[int, tuple[torch.Tensor, int]] = {}
        left = self._left or self._read()
        counters = self._counters()
        if counters is None:
            return held
        for read in left:
            bits = _unsigned(read.bits).tolist()
            for layer, place, value in zip(read.bank.layers, read.bank.places, bits, strict=True):
                held[layer] = local(counters[place]), value
        return held

    def _compared(self, before: list[_Read], steps: int) -> tuple[list[_Read], list[CounterPair]]:
        started = time.perf_counter()
        now = self._read()
        pairs = _pairs(before, now, steps)
        self._rotation.counters_took(time.perf_counter() - started)
        return now, pairs

    def _read(self) -> list[_Read]:
        """All of them; where something is not as it was, they are looked for again."""
        counters = self._counters() if self._seen else None
        if counters is None:
            self._look()
            counters = self._counters()
        if counters is None:
            return []
        return [_Read(bank, bank.read(counters)) for bank in self._banks]

    def _counters(self) -> list[Any] | None:
        """Those of all optimizers in one list, or None if they are not where they were."""
        every: list[Any] = []
        for optimizer, seen in zip(self._optimizers, self._seen, strict=True):
            found = seen.counters(optimizer)
            if found is None:
                return None
            every += found
        return every

    def _look(self) -> None:
        groups: dict[tuple[Any, ...], list[tuple[int, int, torch.Tensor]]] = {}
        self._seen, count = [], 0
        for optimizer in self._optimizers:
            adds_one = type(optimizer).__module__.startswith("torch.optim.")
            found = counters_of(optimizer)
            addresses = addresses_of(found)
            some = any(counter is not None for counter in found)
            self._seen.append(Seen(len(found), addresses if some else None, all(addresses)))
            for place, (parameter, counter) in enumerate(zip(optimizer.state, found, strict=True)):
                layer = self._layers.get((id(optimizer), id(parameter)))
                if layer is None or counter is None:
                    continue
                key = (counter.device, counter.dtype, is_plain(counter), adds_one)
                groups.setdefault(key, []).append((layer, count + place, counter))
            count += len(found) if some else 0
        self._banks = [bank_of(key, members) for key, members in groups.items()]


def _pairs(before: list[_Read], after: list[_Read], steps: int) -> list[CounterPair]:
    """What of two readings is not known to be as it should be."""
    if len(before) != len(after) or any(
        one.bank is not two.bank for one, two in zip(before, after, strict=True)
    ):
        before, after = _aligned(before, after)
    pairs = []
    for one, two in zip(before, after, strict=True):
        if steps and not (one.bank.adds_one and two.bank.adds_one):
            continue
        if steps > 1 and not (one.bank is two.bank and one.bank.held):
            continue  # perhaps made anew in the meantime, to count from zero again
        pair = _pair(one, two, steps)
        if pair is not None:
            pairs.append(pair)
    return pairs


def _pair(one: _Read, two: _Read, steps: int) -> CounterPair | None:
    dtype = str(two.bank.dtype).removeprefix("torch.")
    before, after = one.bits, two.bits
    if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):
        both = torch.stack([torch.as_tensor(before), torch.as_tensor(after)])
        return CounterPair(two.bank.layers, dtype, both, steps)
    if _as_usual(before, after, _NUMBERS.get(two.bank.dtype), steps):
        return None
    bits = np.stack([before, after])
    if not wrong_places(bits, dtype, steps).size:
        return None
    return CounterPair(two.bank.layers, dtype, bits, steps)


def _as_usual(before: NDArray[Any], after: NDArray[Any], counted: Any, steps: int) -> bool:
    """Whether all are equal, or `steps` more of the dtype `counted`: found in the least time."""
    if counted is None or not steps:
        return before.tobytes() == after.tobytes()
    grown: bool = _grown(before.view(counted), after.view(counted), counted(steps))
    return grown


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
    held = [read.bank.places[at] for at in places]
    bank = Bank(tuple(layers), held, read.bank.dtype, read.bank.adds_one)
    if isinstance(read.bits, np.ndarray):
        return _Read(bank, read.bits[places])
    rows = read.bits.unbind()
    return _Read(bank, torch.stack([rows[at] for at in places]))


def _unsigned(bits: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    found: NDArray[Any] = bits.cpu().numpy() if isinstance(bits, torch.Tensor) else bits
    return found.view(f"u{found.itemsize}")


@compiled()
def _grown(before: Any, after: Any, steps: Any) -> bool:
    others = 0
    for place in range(len(before)):
        others += after[place] != before[place] + steps
    return others == 0
