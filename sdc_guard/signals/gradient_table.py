"""What was measured of the gradients of a step: in host memory at once, or still on a device."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..digest.reference import stack_rows
from ..store.run_file import Layer
from .device_sums import sums_on_device
from .flat_shards import FlatPart, placements
from .fused_cpu import Numbers, sums_of_many
from .measures import sums_into
from .placement import local, of_gradient
from .sums import SUMS
from .usual import addresses

# steps' sums in one array, and rows of it at most: between the kernels of a training an array takes
# as long to make, or to copy, as many gradients to measure
_SHEETS: Final = 32
_MOST_ROWS: Final = 20_000
Parameters: TypeAlias = list[tuple[Layer, torch.nn.Parameter]]


@dataclass(slots=True)  # frozen, it would take longer to make than what is in it
class Measured:
    """The sums of some gradients: `sums` is float64 (len(rows), 5), an array in host memory.

    Or a tensor that is still on a device.

    Attributes:
        rows: places in the list of parameters.
        reduced: whether a reduction over ranks had been done by then.
        place: address of `sums`; 0 where it is a tensor.
    """

    rows: list[int]
    sums: torch.Tensor | NDArray[np.float64]
    reduced: bool
    place: int = 0


class GradientTable:
    """The newest sums of each gradient since the last `take`.

    Args:
        parameters: layer and parameter, in the order of the layers' numbers.
        flat: parts of flat tensors, by id of the parameter.
        reducing: whether other ranks' gradients are added to plain ones during backward.

    Attributes:
        tensors: the parameters, a row each; the other lists have a value for each row, too.
        numel: elements of each whole tensor.
        placements: of the gradients.
        sums: float64 (rows, 5), of those in host memory: another array after each `take`.
        memory: where `sums` begins.
        in_host: whether `sums` has it, since the last `take`.
        fired: the backward that measured it last.
        versions: the gradient's, when it was measured in host memory. Hooks write to these lists:
            none of them is ever replaced.
    """

    def __init__(
        self, parameters: Parameters, flat: Mapping[int, FlatPart], *, reducing: bool
    ) -> None:
        self.parameters = parameters
        self.tensors = [parameter for _, parameter in parameters]
        self.numel = [layer.numel for layer, _ in parameters]
        self.placements = placements(self.tensors, flat)
        self._reducing = reducing
        self._count = count = len(parameters)
        self._every_row = list(range(count))
        self._none = [False] * count
        self.in_host = [False] * count
        self.fired = [-1] * count
        self.versions = [-1] * count
        self._elsewhere: set[int] = set()  # rows that were measured, and not into `sums`
        self._on_device: dict[int, torch.Tensor] = {}
        self._reduced: Measured | None = None
        self._sheets: list[tuple[NDArray[np.float64], int]] = []
        self.sums: NDArray[np.float64] = np.zeros((0, len(SUMS)))
        self._before = self.sums  # kept: a hook in another thread may be writing to it yet
        self.memory = 0
        self._next_sheet()
        self._together: tuple[list[int], Numbers, Numbers] = [], array("q"), array("q")

    def is_measured(self, row: int) -> bool:
        """Whether a gradient was, since the last `take`."""
        return self.in_host[row] or row in self._elsewhere

    def go_on_from(self, other: GradientTable) -> None:
        """Keep what another one holds of the same parameters."""
        places = {id(parameter): row for row, parameter in enumerate(self.tensors)}
        for old, parameter in enumerate(other.tensors):
            row = places.get(id(parameter))
            if row is not None and other.is_measured(old):
                self.sums[row], self.in_host[row] = other.sums[old], other.in_host[old]
                self.fired[row], self.versions[row] = other.fired[old], other.versions[old]
                if old in other._elsewhere:
                    self._elsewhere.add(row)
                if old in other._on_device:
                    self._on_device[row] = other._on_device[old]

    def take(self, *, stepped: bool) -> list[Measured]:
        """What it holds, once: this rank's own first, then the reduced ones.

        Args:
            stepped: the step has been taken already, and may have dropped the gradients.
        """
        dropped: set[int] = set()
        if not stepped:
            dropped = {row for row, one in enumerate(self.tensors) if one.grad is None}
        if not dropped and all(self.in_host):
            found = [Measured(self._every_row, self.sums, False, self.memory)]
            self._next_sheet()
        else:
            found = self._own(dropped)
        if self._reduced is not None:
            found.append(self._reduced)
        self.reset()
        return found

    def _own(self, dropped: set[int]) -> list[Measured]:
        in_host = [row for row, seen in enumerate(self.in_host) if seen and row not in dropped]
        on_device = [row for row in sorted(self._on_device) if row not in dropped]
        found = []
        if in_host:
            own = self.sums[in_host]
            found.append(Measured(in_host, own, False, own.ctypes.data))
        if on_device:
            sums = stack_rows([self._on_device[row] for row in on_device])
            found.append(Measured(on_device, sums, False))
        return found

    def _next_sheet(self) -> None:
        """Leave `sums` to whoever has taken it: one array is made for many steps."""
        if not self._sheets:
            steps = max(1, min(_SHEETS, _MOST_ROWS // max(self._count, 1)))
            made = np.zeros((steps, self._count, len(SUMS)))
            memory = made.ctypes.data
            self._sheets = [(sheet, memory + at * made.strides[0]) for at, sheet in enumerate(made)]
        self._before = self.sums
        self.sums, self.memory = self._sheets.pop()

    def reset(self) -> None:
        """Forget what was measured."""
        self.in_host[:] = self._none
        if self._elsewhere:
            self._elsewhere, self._on_device, self._reduced = set(), {}, None

    def hold(self, row: int, version: int) -> None:
        """Note that `sums` has a gradient, as it was when it had this version."""
        self.in_host[row] = True
        self.versions[row] = version

    def is_reduced(self, row: int) -> bool:
        """Whether a reduction over ranks adds to it during backward."""
        return self._reducing and self.placements[row].scope == "local"

    def measure(self, rows: list[int], *, reduced: bool) -> None:
        """Measure the gradients at `rows`, those in host memory into `sums` unless reduced."""
        elsewhere: dict[int, torch.Tensor] = {}
        for row in rows:
            gradient = self.tensors[row].grad
            if gradient is None:
                continue
            self.placements[row] = of_gradient(self.placements[row], gradient)
            if local(gradient).device.type == "cpu" and not reduced:
                self.measure_in_host(row, gradient)
            else:
                elsewhere[row] = local(gradient)
                self._elsewhere.add(row)
        if not elsewhere:
            return
        sums = self._sums(elsewhere)
        if reduced:
            self._reduced = Measured(list(elsewhere), sums, True)
        else:
            self._on_device.update(zip(elsewhere, sums.unbind(), strict=True))

    def measure_in_host(self, row: int, gradient: torch.Tensor) -> None:
        """Measure a gradient in host memory."""
        mine = local(gradient)
        sums_into(mine, self._stands_for(row, mine), self.sums[row])
        self.hold(row, gradient._version)

    def measure_together(self, rows: list[int], task: int) -> None:
        """Measure gradients that can be expected to be usual, see `usual.is_usual`, in one call.

        Args:
            rows: of them.
            task: number of the backward in which they fired.
        """
        tensors, numel = self.tensors, self.numel
        gradients = [tensors[row].grad for row in rows]
        places = addresses(gradients, [numel[row] for row in rows])
        if 0 in places:
            rows, gradients, places = self._usual(rows, gradients, places, task)
        known, counts, where = self._together
        if rows != known:  # else the same as in the backward before
            counts, where = array("q", [numel[row] for row in rows]), array("q", rows)
            self._together = rows, counts, where
        sums_of_many(array("q", places), counts, where, self.memory)
        fired, versions, in_host = self.fired, self.versions, self.in_host
        for row, gradient in zip(rows, gradients, strict=True):
            fired[row], versions[row], in_host[row] = task, gradient._version, True  # type: ignore[union-attr] # it has a place

    def _usual(
        self,
        rows: list[int],
        gradients: list[torch.Tensor | None],
        places: list[int],
        task: int,
    ) -> tuple[list[int], list[torch.Tensor | None], list[int]]:
        """Those that have a place in memory; measures the others."""
        for row, gradient, place in zip(rows, gradients, places, strict=True):
            if gradient is not None and not place:
                self.fired[row] = task
                self.measure([row], reduced=False)
        usual = [at for at, place in enumerate(places) if place]
        return (
            [rows[at] for at in usual],
            [gradients[at] for at in usual],
            [places[at] for at in usual],
        )

    def measure_unseen(self, task: int) -> None:
        """Measure what no hook of a backward has measured, now that it ends.

        Args:
            task: its number.
        """
        every_hook = self.fired.count(task) == self._count
        if every_hook and not self._reducing and all(self.in_host):
            return  # the usual case in host memory
        left, on_device, reduced = [], [], []
        for row, parameter in enumerate(self.tensors):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self.is_reduced(row):
                reduced.append(row)
            elif local(gradient).device.type != "cpu":
                on_device.append(row)
            elif self.fired[row] != task and (
                not self.is_measured(row) or gradient._version != self.versions[row]
            ):
                left.append(row)
        self.measure(left + on_device, reduced=False)
        if reduced:
            self.measure(reduced, reduced=True)

    def _sums(self, gradients: dict[int, torch.Tensor]) -> torch.Tensor:
        if any(gradient.device.type != "cpu" for gradient in gradients.values()):
            numel = [self._stands_for(row, gradient) for row, gradient in gradients.items()]
            return sums_on_device(list(gradients.values()), numel)
        table = np.zeros((len(gradients), 5))
        for out, (row, gradient) in zip(table, gradients.items(), strict=True):
            sums_into(gradient, self._stands_for(row, gradient), out)
        return torch.from_numpy(table)

    def _stands_for(self, row: int, mine: torch.Tensor) -> int:
        """Elements that this rank's gradient stands for."""
        return mine.numel() if mine.layout == torch.strided else self.numel[row]
