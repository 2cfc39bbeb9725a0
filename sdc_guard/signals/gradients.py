"""Gradients where they are accumulated, reduced, and not yet clipped.

A post-accumulate hook on every parameter fires under torch.compile, on sharded parameters and
with in-place activations, where module hooks do not. In host memory it measures the gradient at
once, while the processor's cache still holds it: what DistributedDataParallel is about to reduce
is this rank's own. The first hook of a backward also queues a callback on the autograd engine;
that callback queues itself once more, so that it runs after the one by which
DistributedDataParallel ends its reduction. There everything is measured that the hooks did not
see: reduced gradients, those on an accelerator, and those that this backward left as they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..digest.reference import stack_rows
from ..store.run_file import Layer
from . import beside
from .device_sums import sums_on_device
from .flat_shards import FlatPart, placements
from .fused_cpu import sums_of_many, sums_of_one, sums_of_some
from .limits import capturing
from .measures import sums_into
from .placement import local, of_gradient
from .usual import addresses, is_ours_alone, is_usual, promises_usual

Parameters = list[tuple[Layer, torch.nn.Parameter]]
# elements; a gradient that small is not worth a call of its own while the cache holds it
_SMALL = 1 << 12
_LOOK_FOR_HOOKS = 64  # backwards from one look for the script's hooks to the next
_current_task = torch._C._current_graph_task_id


@dataclass(frozen=True)
class Measured:
    """The sums of some gradients: `sums` is float64 (len(rows), 5), an array in host memory.

    Or a tensor that is still on a device.

    Attributes:
        rows: places in the list of parameters.
        reduced: whether a reduction over ranks had been done by then.
    """

    rows: list[int]
    sums: torch.Tensor | NDArray[np.float64]
    reduced: bool


class GradientCapture:
    """Measures every gradient of each backward; the newest backward counts.

    Args:
        parameters: layer and parameter, in the order of the layers' numbers.
        trouble: called with a place and an exception for what goes wrong in a hook.
        begins: called at the first hook of each backward.
        ended: called when a backward has ended, or one inside of it.
        dropped: called with the number of backwards whose gradients the script has dropped.
        reducing: whether other ranks' gradients are added to plain ones during backward.
        flat: parts of flat tensors, by id of the parameter.
        modules: of the model, whose hooks may write to gradients in the backward.
    """

    def __init__(
        self,
        parameters: Parameters,
        trouble: Callable[[str, BaseException], None],
        *,
        begins: Callable[[], None] | None = None,
        ended: Callable[[], None] | None = None,
        dropped: Callable[[int], None] | None = None,
        reducing: bool = False,
        flat: Mapping[int, FlatPart] | None = None,
        modules: Iterable[torch.nn.Module] = (),
    ) -> None:
        self.parameters = parameters
        self.placements = placements([parameter for _, parameter in parameters], flat or {})
        self._is_plain = [place.scope == "local" for place in self.placements]
        self._numel = [layer.numel for layer, _ in parameters]
        self._tensors = [parameter for _, parameter in parameters]
        self._every_row = list(range(len(parameters)))
        self._numels = np.array(self._numel, dtype=np.int64)
        self._is_large = [
            plain and 4 * numel >= beside.LARGE and parameter.is_cpu and not reducing
            for plain, numel, (_, parameter) in zip(
                self._is_plain, self._numel, parameters, strict=True
            )
        ]
        self._deferred = [
            plain and not large and not reducing and promises_usual(parameter)
            for plain, large, parameter in zip(
                self._is_plain, self._is_large, self._tensors, strict=True
            )
        ]
        self._read_beside = False
        self._reading = beside.Reading()
        self._modules, self._backwards = list(modules), 0
        self._others_write = self._others_may_write()
        self._at_once = False  # each in its hook, as others may write to it after that
        self._registries: list[dict[int, Any]] = []  # the hooks of each parameter that has ours
        self._late: list[int] = []  # rows whose hooks fired in the backward under way
        self._trouble = trouble
        self._begins, self._ended, self._reducing = begins, ended, reducing
        self._dropped = dropped
        count = len(parameters)
        self._table: NDArray[np.float64] = np.zeros((count, 5))
        self._measured = [False] * count  # since the last take()
        self._fired = [-1] * count  # the backward that did so last
        self._versions = [-1] * count
        self._seen_in_host = [False] * count
        self._on_device: dict[int, torch.Tensor] = {}
        self._reduced: Measured | None = None
        self._ends: list[int] = []  # of the backwards since the last take() that hold no other
        self._first: tuple[int, weakref.ref[torch.Tensor]] | None = None
        self._under_way: weakref.ref[_EndOfBackward] | None = None
        self._engine_works = True
        # three quarters of the backward: it comes to the last parameters first
        self._late_row = count // 4
        self.most_is_done: Callable[[], None] | None = None
        self._handles: dict[int, Any] = {}
        self._unhooked = list(range(count))
        self.hook_new()

    @property
    def backwards(self) -> int:
        """Backward passes since the last `take`, those inside of others not counted."""
        return len(self._ends)

    @property
    def under_way(self) -> bool:
        """Whether a backward has begun and not ended."""
        return self._under_way is not None and self._under_way() is not None

    def hook_new(self) -> bool:
        """Register on parameters that need a gradient by now and have no hook of ours.

        Returns:
            whether there were any.
        """
        before = len(self._unhooked)
        for row in list(self._unhooked):
            parameter = self.parameters[row][1]
            if parameter.requires_grad:
                self._unhooked.remove(row)
                hook = partial(self._hook_of(row), row)
                self._handles[row] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call] # torch has no types here
                self._registries.append(parameter._post_accumulate_grad_hooks)
        return len(self._unhooked) < before

    def go_on_from(self, other: GradientCapture) -> None:
        """Keep what another capture measured of the same parameters in this step."""
        other._wait_for_reader()
        places = {id(parameter): row for row, (_, parameter) in enumerate(self.parameters)}
        for old, (_, parameter) in enumerate(other.parameters):
            row = places.get(id(parameter))
            if row is not None and other._measured[old]:
                self._table[row] = other._table[old]
                self._seen_in_host[row] = other._seen_in_host[old]
                self._measured[row], self._fired[row] = True, other._fired[old]
                self._versions[row] = other._versions[old]
                if old in other._on_device:
                    self._on_device[row] = other._on_device[old]
        self._ends = other._ends
        self._late = [
            places[id(other.parameters[row][1])]
            for row in other._late
            if id(other.parameters[row][1]) in places
        ]

    def remove(self) -> None:
        """Remove the hooks that this object registered, and no others."""
        for handle in self._handles.values():
            handle.remove()
        self._handles, self._registries = {}, []

    def take(self, *, stepped: bool = False) -> list[Measured]:
        """The newest measures, once: this rank's own first, then the reduced ones.

        Args:
            stepped: the step has been taken already, and may have dropped the gradients.
        """
        self._wait_for_reader()
        if self._late:
            self._measure_late()
        if stepped:
            present = self._measured
        else:
            present = [
                seen and parameter.grad is not None
                for seen, parameter in zip(self._measured, self._tensors, strict=True)
            ]
        found: list[Measured] = []
        if all(present) and all(self._seen_in_host):
            found.append(Measured(self._every_row, self._table, False))
            self._table = np.zeros(self._table.shape)
        else:
            found = self._own(present)
        if self._reduced is not None:
            found.append(self._reduced)
        self.reset()
        return found

    def _own(self, present: list[bool]) -> list[Measured]:
        in_host = [row for row, seen in enumerate(self._seen_in_host) if seen and present[row]]
        on_device = [row for row in sorted(self._on_device) if present[row]]
        found = []
        if in_host:
            found.append(Measured(in_host, self._table[in_host], False))
        if on_device:
            sums = stack_rows([self._on_device[row] for row in on_device])
            found.append(Measured(on_device, sums, False))
        return found

    def reset(self) -> None:
        """Forget what was measured."""
        self._wait_for_reader()
        self._on_device, self._reduced, self._late = {}, None, []
        self._seen_in_host = [False] * len(self.parameters)
        self._measured = [False] * len(self.parameters)
        self._ends = []

    def measure_again(self, *, reduced: bool) -> None:
        """Measure the present gradients in place of what the hooks measured.

        Args:
            reduced: whether a reduction over ranks of plain gradients has been done by now.
        """
        ends = self._ends
        self.reset()
        self._ends = ends
        plain = [row for row, place in enumerate(self.placements) if place.scope == "local"]
        self._measure(sorted(set(range(len(self.parameters))) - set(plain)), reduced=False)
        self._measure(plain, reduced=reduced)

    def measure_now(self, parameters: set[int] | None = None) -> bool:
        """Measure the present gradients of some parameters, by id, or of all that were not yet.

        For steps that no hook announced. True if there was anything to measure.
        """
        self._wait_for_reader()
        rows = [
            row
            for row, (_, parameter) in enumerate(self.parameters)
            if parameter.grad is not None
            and (not self._measured[row] or row in self._late)
            and (parameters is None or id(parameter) in parameters)
        ]
        self._measure(rows, reduced=False)
        return bool(rows)

    def _hook_of(self, row: int) -> Callable[[int, torch.Tensor], None]:
        if not self._deferred[row]:
            return self._on_gradient
        return self._on_small if self._numel[row] <= _SMALL else self._on_middle

    # these two do as little as can be: the kernels of a backward push Python's own code out of the
    # processor's caches, so that each line takes several times as long as by itself
    def _on_small(self, row: int, parameter: torch.Tensor) -> None:
        under_way = self._under_way
        if under_way is None or under_way() is None or self._at_once:
            self._on_first(row, parameter)
        else:
            self._late.append(row)

    def _on_middle(self, row: int, parameter: torch.Tensor) -> None:
        under_way = self._under_way
        if under_way is None or under_way() is None or self._at_once:
            self._on_gradient(row, parameter)
            return
        try:
            gradient = parameter.grad
            if gradient is None:
                return
            if not is_usual(gradient):
                self._on_gradient(row, parameter)
                return
            sums_of_some(gradient.data_ptr(), gradient.numel(), self._table, row)
            self._fired[row], self._versions[row] = _current_task(), gradient._version
            self._measured[row] = self._seen_in_host[row] = True
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring a gradient", error)

    def _on_first(self, row: int, parameter: torch.Tensor) -> None:
        """The first hook of a backward, or one after which others may write to the gradient."""
        try:
            gradient = parameter.grad
            if gradient is not None and not self.under_way:
                self._begin(row, gradient)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring a gradient", error)
        if self._at_once:
            self._on_gradient(row, parameter)
        else:
            self._late.append(row)

    def _on_gradient(self, row: int, parameter: torch.Tensor) -> None:
        try:
            gradient = parameter.grad
            if gradient is None:
                return
            if not gradient.is_cpu and capturing():
                # else a part of the graph, whose replays would find other memory
                if self._begins is not None:
                    self._begins()
                return
            if self._under_way is None or self._under_way() is None:
                self._begin(row, gradient)
            self._fired[row] = _current_task()
            if row == self._late_row and self.most_is_done is not None:
                self.most_is_done()
            if self._is_plain[row] and gradient.is_cpu:
                if self._read_beside and self._is_large[row] and is_ours_alone(parameter, gradient):
                    self._reading.read(gradient, self._table, row)
                    return
                if is_usual(gradient):
                    sums_of_one(gradient, self._table, row)
                else:
                    sums_into(gradient, self._numel[row], self._table[row])
                self._measured[row] = self._seen_in_host[row] = True
                self._versions[row] = gradient._version
                return
            self.placements[row] = of_gradient(self.placements[row], gradient)
            if local(gradient).device.type == "cpu":
                self._measure_in_host(row, gradient)
            elif self._is_reduced(row):
                self._measure([row], reduced=False)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring a gradient", error)

    def _wait_for_reader(self) -> None:
        if not self._reading.gradients:
            return
        for row, version in self._reading.finish(self._table).items():
            self._measured[row] = self._seen_in_host[row] = True
            self._versions[row] = version

    def _others_may_write(self) -> bool:
        """Whether other hooks than a parameter's own last ones may write to gradients.

        Then each is measured in its hook; otherwise some are measured a little later.
        """
        return (
            bool(torch.nn.modules.module._global_backward_hooks)
            or any(m._backward_hooks or m._backward_pre_hooks for m in self._modules)
            or any(parameter._backward_hooks for parameter in self._tensors)
        )

    def _begin(self, row: int, gradient: torch.Tensor) -> None:
        if self._engine_works:
            self._late = []  # of a backward that an exception ended
        if self._begins is not None:
            self._begins()
        if self._first is not None and self._first[0] == row and self._first[1]() is not gradient:
            if self._ends and self._dropped is not None:
                self._dropped(len(self._ends))
            self._ends = []  # the script dropped what had been accumulated
        self._first = (row, weakref.ref(gradient))
        self._wait_for_reader()  # of a backward that an exception ended
        self.wait_for_end()
        if self._backwards % _LOOK_FOR_HOOKS == 0:
            self._others_write = self._others_may_write()
        self._backwards += 1
        self._at_once = self._others_write or max(map(len, self._registries), default=1) > 1
        self._read_beside = (
            True in self._is_large
            and not self._others_write
            and self.under_way
            and beside.core_is_free()
        )

    def wait_for_end(self) -> None:
        """Have the end of the backward under way told, if it will not be already."""
        if self.under_way:
            return
        end = _EndOfBackward(self)
        if self._engine_works and self.queue(end):
            self._under_way = weakref.ref(end)

    def queue(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called when the backward under way ends; False when that fails."""
        try:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(callback)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._engine_works = False
            self._trouble("measuring gradients", error)
            return False
        return True

    def end(self) -> None:
        """A backward has ended, this one or one inside of it."""
        task = _current_task()
        self._under_way = None
        try:
            # numbers grow: a backward that ends after one of a higher number holds that one
            self._ends = [*(number for number in self._ends if number < task), task]
            self._wait_for_reader()
            self._measure_late(task)
            self._measure_unseen(task)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring gradients", error)
        if self._ended is not None:
            self._ended()

    def _measure_late(self, task: int = -1) -> None:
        """Measure the small gradients of a backward together."""
        late, self._late = self._late, []
        gradients = [self._tensors[row].grad for row in late]
        places = addresses(gradients, [self._numel[row] for row in late])
        together = []
        for row, gradient, place in zip(late, gradients, places, strict=True):
            if gradient is None:
                continue
            self._fired[row] = task
            if not place:
                self._measure([row], reduced=False)
                continue
            together.append(row)
            self._measured[row] = self._seen_in_host[row] = True
            self._versions[row] = gradient._version
        if together:
            rows = np.array(together, dtype=np.int64)
            found = np.array([place for place in places if place], dtype=np.int64)
            sums_of_many(found, self._numels, rows, self._table)

    def _measure_unseen(self, task: int) -> None:
        every_hook = self._fired.count(task) == len(self._fired)
        if every_hook and not self._reducing and all(self._seen_in_host):
            return  # the usual case in host memory
        left, on_device, reduced = [], [], []
        for row, (_, parameter) in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self._is_reduced(row):
                reduced.append(row)
            elif local(gradient).device.type != "cpu":
                on_device.append(row)
            elif self._fired[row] != task and (
                not self._measured[row] or gradient._version != self._versions[row]
            ):
                left.append(row)
        self._measure(left + on_device, reduced=False)
        if reduced:
            self._measure(reduced, reduced=True)

    def _is_reduced(self, row: int) -> bool:
        return self._reducing and self.placements[row].scope == "local"

    def _measure(self, rows: list[int], *, reduced: bool) -> None:
        """Measure the gradients at `rows`, those in host memory into the table unless reduced."""
        elsewhere: dict[int, torch.Tensor] = {}
        for row in rows:
            gradient = self.parameters[row][1].grad
            if gradient is None:
                continue
            self.placements[row] = of_gradient(self.placements[row], gradient)
            if local(gradient).device.type == "cpu" and not reduced:
                self._measure_in_host(row, gradient)
            else:
                elsewhere[row] = local(gradient)
                self._measured[row] = True
        if not elsewhere:
            return
        sums = self._sums(elsewhere)
        if reduced:
            self._reduced = Measured(list(elsewhere), sums, True)
        else:
            self._on_device.update(zip(elsewhere, sums.unbind(), strict=True))

    def _sums(self, gradients: dict[int, torch.Tensor]) -> torch.Tensor:
        if any(gradient.device.type != "cpu" for gradient in gradients.values()):
            numel = [self._stands_for(row, gradient) for row, gradient in gradients.items()]
            return sums_on_device(list(gradients.values()), numel)
        table = np.zeros((len(gradients), 5))
        for out, (row, gradient) in zip(table, gradients.items(), strict=True):
            sums_into(gradient, self._stands_for(row, gradient), out)
        return torch.from_numpy(table)

    def _measure_in_host(self, row: int, gradient: torch.Tensor) -> None:
        mine = local(gradient)
        sums_into(mine, self._stands_for(row, mine), self._table[row])
        self._measured[row] = self._seen_in_host[row] = True
        self._versions[row] = gradient._version

    def _stands_for(self, row: int, mine: torch.Tensor) -> int:
        """Elements that this rank's gradient stands for."""
        return mine.numel() if mine.layout == torch.strided else self.parameters[row][0].numel


class _EndOfBackward:
    """Called twice by the autograd engine at the end of a backward, which alone keeps it alive.

    A backward that ends by an exception calls nothing, and lets go of it: so the next one is
    not taken for a part of it.
    """

    def __init__(self, capture: GradientCapture) -> None:
        self._capture = capture
        self._last = False

    def __call__(self) -> None:
        if self._last:
            self._capture.end()
            return
        self._last = True
        self._capture.queue(self)
