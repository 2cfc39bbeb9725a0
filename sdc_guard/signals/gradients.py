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
from functools import partial
from typing import Any

import torch

from . import beside
from .end_of_backward import EndOfBackward
from .flat_shards import FlatPart
from .fused_cpu import ROW, sums_at, sums_of_one
from .gradient_table import GradientTable, Measured, Parameters
from .limits import capturing
from .measures import sums_into
from .placement import Placement, local, of_gradient
from .usual import is_ours_alone, is_usual, promises_usual

# elements; a gradient that small is not worth a call of its own while the cache holds it
_SMALL = 1 << 12
_LOOK_FOR_HOOKS = 64  # backwards from one look for the script's hooks to the next
_current_task = torch._C._current_graph_task_id


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
        self._table = GradientTable(parameters, flat or {}, reducing=reducing)
        self._is_plain = [place.scope == "local" for place in self._table.placements]
        self._is_large = [
            plain and 4 * layer.numel >= beside.LARGE and parameter.is_cpu and not reducing
            for plain, (layer, parameter) in zip(self._is_plain, parameters, strict=True)
        ]
        self._deferred = [
            plain and not large and not reducing and promises_usual(parameter)
            for plain, large, (_, parameter) in zip(
                self._is_plain, self._is_large, parameters, strict=True
            )
        ]
        self._has_large, self._read_beside = True in self._is_large, False
        self._reading = beside.Reading()
        self._modules, self._backwards = list(modules), 0
        self._others_write = self._others_may_write()
        self._at_once = False  # each in its hook, as others may write to it after that
        self._registries: list[dict[int, Any]] = []  # the hooks of each parameter that has ours
        # rows of small gradients whose hooks fired in the backward under way; hooks hold this list
        self._late: list[int] = []
        self._trouble = trouble
        self._begins, self._ended = begins, ended
        self._dropped = dropped
        self._ends: list[int] = []  # of the backwards since the last take() that hold no other
        self._first: tuple[int, weakref.ref[torch.Tensor]] | None = None
        self._under_way: weakref.ref[EndOfBackward] | None = None
        # the same where hooks need not do more than tell that they fired: not where each gradient
        # is measured in its hook, as others may write to it after that
        self._noting: Callable[[], EndOfBackward | None] = _nothing
        self._engine_works = True
        # three quarters of the backward: it comes to the last parameters first
        self._late_row = len(parameters) // 4
        self.most_is_done: Callable[[], None] | None = None
        self._handles: dict[int, Any] = {}
        self._unhooked = list(range(len(parameters)))
        self.hook_new()

    @property
    def backwards(self) -> int:
        """Backward passes since the last `take`, those inside of others not counted."""
        return len(self._ends)

    @property
    def placements(self) -> list[Placement]:
        """What this rank holds of each gradient."""
        return self._table.placements

    @property
    def under_way(self) -> bool:
        """Whether a backward has begun and not ended."""
        return self._under_way is not None and self._under_way() is not None

    def hook_new(self) -> bool:
        """Register on parameters that need a gradient by now and have no hook of ours.

        Returns:
            whether there were any.
        """
        if not self._unhooked:
            return False
        before = len(self._unhooked)
        for row in list(self._unhooked):
            parameter = self.parameters[row][1]
            if parameter.requires_grad:
                self._unhooked.remove(row)
                self._handles[row] = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call] # torch has no types here
                    self._hook_of(row)
                )
                self._registries.append(parameter._post_accumulate_grad_hooks)
        return len(self._unhooked) < before

    def go_on_from(self, other: GradientCapture) -> None:
        """Keep what another capture measured of the same parameters in this step."""
        other._wait_for_reader()
        self._table.go_on_from(other._table)
        self._ends = other._ends
        places = {id(parameter): row for row, (_, parameter) in enumerate(self.parameters)}
        fired = [places.get(id(other.parameters[row][1])) for row in other._late]
        self._late += [row for row in fired if row is not None]

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
        self._measure_late()
        found = self._table.take(stepped=stepped)
        self._ends = []
        return found

    def reset(self) -> None:
        """Forget what was measured."""
        self._wait_for_reader()
        self._table.reset()
        self._late.clear()
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
        others = sorted(set(range(len(self.parameters))) - set(plain))
        self._table.measure(others, reduced=False)
        self._table.measure(plain, reduced=reduced)

    def measure_now(self, parameters: set[int] | None = None) -> bool:
        """Measure the present gradients of some parameters, by id, or of all that were not yet.

        For steps that no hook announced. True if there was anything to measure.
        """
        self._wait_for_reader()
        rows = [
            row
            for row, (_, parameter) in enumerate(self.parameters)
            if parameter.grad is not None
            and (not self._table.is_measured(row) or row in self._late)
            and (parameters is None or id(parameter) in parameters)
        ]
        self._table.measure(rows, reduced=False)
        return bool(rows)

    def _hook_of(self, row: int) -> Callable[[torch.Tensor], None]:
        if not self._deferred[row]:
            return partial(self._on_gradient, row)
        return self._on_small(row) if self._table.numel[row] <= _SMALL else self._on_middle(row)

    # these two do as little as can be: the kernels of a backward push Python's own code out of the
    # processor's caches, so that each line takes several times as long as by itself
    def _on_small(self, row: int) -> Callable[[torch.Tensor], None]:
        late = self._late

        def note(parameter: torch.Tensor) -> None:
            if self._noting() is None:
                self._on_first(row, parameter)
            else:
                late.append(row)

        return note

    def _on_middle(self, row: int) -> Callable[[torch.Tensor], None]:
        table, task = self._table, _current_task
        fired, versions, in_host = table.fired, table.versions, table.in_host
        plain, kind, strided = torch.Tensor, torch.float32, torch.strided
        place = ROW * row

        def read(parameter: torch.Tensor) -> None:
            if self._noting() is None:
                self._on_gradient(row, parameter)
                return
            try:
                gradient: Any = parameter.grad
                if (  # what `usual.is_usual` asks, without a call
                    type(gradient) is plain
                    and gradient.dtype is kind
                    and gradient.is_cpu
                    and gradient.layout is strided
                    and gradient.is_contiguous()
                    and (memory := gradient.data_ptr())
                ):
                    sums_at(memory, gradient.numel(), table.memory + place)
                    fired[row], versions[row], in_host[row] = task(), gradient._version, True
                else:
                    self._on_gradient(row, parameter)
            except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
                self._trouble("measuring a gradient", error)

        return read

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
            table = self._table
            table.fired[row] = _current_task()
            if row == self._late_row and self.most_is_done is not None:
                self.most_is_done()
            if self._is_plain[row] and gradient.is_cpu:
                if self._read_beside and self._is_large[row] and is_ours_alone(parameter, gradient):
                    self._reading.read(gradient, table.sums, row)
                    return
                if is_usual(gradient):
                    sums_of_one(gradient, table.sums, row)
                else:
                    sums_into(gradient, table.numel[row], table.sums[row])
                table.hold(row, gradient._version)
                return
            table.placements[row] = of_gradient(table.placements[row], gradient)
            if local(gradient).device.type == "cpu":
                table.measure_in_host(row, gradient)
            elif table.is_reduced(row):
                table.measure([row], reduced=False)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring a gradient", error)

    def _measure_late(self, task: int = -1) -> None:
        """Measure the small gradients of a backward together."""
        self._wait_for_reader()
        if self._late:
            rows = self._late.copy()
            self._late.clear()
            self._table.measure_together(rows, task)

    def _wait_for_reader(self) -> None:
        if not self._reading.gradients:
            return
        for row, version in self._reading.finish(self._table.sums).items():
            self._table.hold(row, version)

    def _others_may_write(self) -> bool:
        """Whether other hooks than a parameter's own last ones may write to gradients.

        Then each is measured in its hook; otherwise some are measured a little later.
        """
        return (
            bool(torch.nn.modules.module._global_backward_hooks)
            or any(m._backward_hooks or m._backward_pre_hooks for m in self._modules)
            or any(parameter._backward_hooks for _, parameter in self.parameters)
        )

    def _begin(self, row: int, gradient: torch.Tensor) -> None:
        if self._engine_works:
            self._late.clear()  # of a backward that an exception ended
        if self._begins is not None:
            self._begins()
        if self._first is not None and self._first[0] == row and self._first[1]() is not gradient:
            if self._ends and self._dropped is not None:
                self._dropped(len(self._ends))
            self._ends = []  # the script dropped what had been accumulated
        self._first = (row, weakref.ref(gradient))
        self._wait_for_reader()  # of a backward that an exception ended
        if self._backwards % _LOOK_FOR_HOOKS == 0:
            self._others_write = self._others_may_write()
        self._backwards += 1
        self._at_once = self._others_write or max(map(len, self._registries), default=1) > 1
        self.wait_for_end()
        self._read_beside = (
            self._has_large and not self._others_write and self.under_way and beside.core_is_free()
        )

    def wait_for_end(self) -> None:
        """Have the end of the backward under way told, if it will not be already."""
        if self.under_way:
            return
        end = EndOfBackward(self)
        if self._engine_works and self.queue(end):
            self._under_way = weakref.ref(end)
            self._noting = _nothing if self._at_once else self._under_way

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
        self._under_way, self._noting = None, _nothing
        try:
            # numbers grow: a backward that ends after one of a higher number holds that one
            self._ends = [number for number in self._ends if number < task] if self._ends else []
            self._ends.append(task)
            self._measure_late(task)
            self._table.measure_unseen(task)
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's backward()
            self._trouble("measuring gradients", error)
        if self._ended is not None:
            self._ended()


def _nothing() -> None:
    """What a reference to nothing gives."""
