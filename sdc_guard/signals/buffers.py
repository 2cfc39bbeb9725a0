"""The model's buffers, digested beside its parameters.

A forward may write to any of them, at any step and in ways that leave no trace: kernels of norms,
writes through `.data` or NumPy. So each is compared from the end of a step to the beginning of the
first forward after it, of whatever kind: an evaluation may write as well. What happens to it from
there to the end of the step is not watched. A buffer whose memory or version counter is another
one by then was written to by an operation of torch, which no fault in memory is, and is not
compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..detect.carried import Key
from ..digest import digest_rows
from ..store.run_file import Layer
from .kept_values import version
from .layers import data_parallel_names, plain_name
from .limits import capturing
from .placement import local, placement
from .state import NO_DIGESTS, PendingDigests

KIND = "buffer"


@dataclass(frozen=True)
class Buffer:
    """A buffer by the module that holds it: the forward may put another tensor in its place."""

    layer: Layer
    module: torch.nn.Module
    name: str

    def tensor(self) -> torch.Tensor | None:
        """This rank's part as it is now, or None where there is nothing to read."""
        found = self.module._buffers.get(self.name)
        if found is None or found.layout is not torch.strided or found.is_meta:
            return None
        return local(found)


def model_buffers(model: torch.nn.Module) -> list[Buffer]:
    """The model's buffers, each once, named as `model_layers` names parameters."""
    data_parallel = data_parallel_names(model)
    seen: set[int] = set()
    found: list[Buffer] = []
    for path, module in model.named_modules():
        for name, tensor in module._buffers.items():
            if tensor is None or id(tensor) in seen or placement(tensor).offset != 0:
                continue
            seen.add(id(tensor))
            full = f"{path}.{name}" if path else name
            plain = plain_name(full, data_parallel)
            layer = Layer(
                id=len(found),
                name=plain,
                aliases=() if plain == full else (full,),
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                numel=tensor.numel(),
            )
            found.append(Buffer(layer, module, name))
    return found


@dataclass
class _Left:
    """A buffer as a step left it: which memory, its version, and its digest if that is here."""

    memory: int
    version: tuple[int, ...]
    row: list[int] | None


class CarriedBuffers:
    """Digests of buffers after a step, and as the first forward after it finds them.

    A hook on the model tells when its forward begins. Hooks on the modules that hold buffers, or
    contain some that do, tell of parts that are called by themselves: after one of these nothing
    is compared until the next step. Once a step went by without a forward that was told, as those
    of a compiled model are not, nothing is compared any more: there may be others before the one
    that is told.

    Args:
        buffers: with their numbers.
        model: that holds them.
        untold: called when a step goes by without a forward that was told.
        trouble: called with a place and an exception for what goes wrong there.
    """

    def __init__(
        self,
        buffers: list[Buffer],
        model: torch.nn.Module,
        untold: Callable[[], None],
        trouble: Callable[[str, BaseException], None],
    ) -> None:
        self._untold, self._trouble = untold, trouble
        self._buffers = {(KIND, buffer.layer.id): buffer for buffer in buffers}
        self._left: dict[Key, _Left] = {}
        self._found: PendingDigests = NO_DIGESTS
        self._changed: dict[Key, torch.Tensor] = {}  # as they were found
        self._due = False  # a step has ended, and no forward of the model has begun since
        self._part = False  # a forward of a part has
        self._told = False  # of a forward since the last backward began
        self._blind = False
        self._handles = [  # before other hooks, which may write to buffers
            module.register_forward_pre_hook(_ForwardBegins(self, module is model), prepend=True)
            for module in model.modules()
            if next(module.buffers(), None) is not None
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    @property
    def urgent(self) -> bool:
        """Whether one is known to differ."""
        return bool(self._changed)

    def changed_tensor(self, key: Key) -> torch.Tensor | None:
        """A buffer as it was when it was found to differ."""
        return self._changed.get(key)

    def after(self) -> PendingDigests:
        """Digests of all of them after a step."""
        tensors = self._tensors()
        rows = digest_rows(list(tensors.values()))
        values: list[Any] = rows.tolist() if rows.is_cpu else [None] * len(tensors)
        self._left = {
            key: _Left(tensor.data_ptr(), version(tensor), row)
            for (key, tensor), row in zip(tensors.items(), values, strict=True)
        }
        self._found, self._changed, self._due, self._part = NO_DIGESTS, {}, True, False
        return PendingDigests(tuple(tensors), rows) if tensors else NO_DIGESTS

    def part_begins(self) -> None:
        """The forward of a part of the model begins, perhaps as a part of the model's."""
        self._part = True

    def forward_begins(self) -> None:
        """The model's forward begins: if it is the first after a step, buffers were at rest."""
        self._told = True
        if not self._due or capturing():
            return
        self._due = False
        if self._part or self._blind:
            return
        try:
            self._compare()
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's forward
            self._trouble("digesting buffers", error)

    def forward_ended(self) -> None:
        """The forwards of a step are over; those that follow are not the script's."""
        if self._due and not self._told and not self._blind:
            self._blind = True
            self._untold()
        self._due = self._told = False

    def before(self) -> PendingDigests:
        """Digests of those that were compared with what the step before left."""
        self._due = False
        return self._found

    def _compare(self) -> None:
        tensors = {
            key: tensor
            for key, tensor in self._tensors().items()
            if not self._was_written(key, tensor)
        }
        if not tensors:
            return
        rows = digest_rows(list(tensors.values()))
        self._found = PendingDigests(tuple(tensors), rows)
        if not rows.is_cpu:
            return
        for (key, tensor), row in zip(tensors.items(), rows.tolist(), strict=True):
            if row != self._left[key].row:
                self._changed[key] = tensor.detach().clone()

    def _was_written(self, key: Key, tensor: torch.Tensor) -> bool:
        left = self._left.get(key)
        return left is None or (left.memory, left.version) != (tensor.data_ptr(), version(tensor))

    def _tensors(self) -> dict[Key, torch.Tensor]:
        found = {key: buffer.tensor() for key, buffer in self._buffers.items()}
        return {key: tensor for key, tensor in found.items() if tensor is not None}


class _ForwardBegins:
    """The hook on a module; in a copy of the module it does nothing."""

    def __init__(self, buffers: CarriedBuffers | None = None, whole: bool = False) -> None:
        self._buffers = None if buffers is None else weakref.ref(buffers)
        self._whole = whole

    def __call__(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return  # as a part of the model it would be compiled, and the model again because of it
        buffers = None if self._buffers is None else self._buffers()
        if buffers is None:
            return
        if self._whole:
            buffers.forward_begins()
        else:
            buffers.part_begins()

    def __reduce__(self) -> tuple[type[_ForwardBegins], tuple[()]]:
        return _ForwardBegins, ()
