"""The model's buffers, digested beside its parameters.

A buffer at rest (a mask, a table of positions) is compared from the end of a step to the next
step. One that the forward writes to (the averages of a batch norm) is compared from the end of a
step to the beginning of the first forward after it, of whatever kind: an evaluation may write as
well. Which is which is learned: statistics of norms are written by kernels that do not tell, all
others are taken to be at rest until they are seen to change from one step to the next. A buffer
whose memory or version counter is another one by then was written to by an operation of torch,
which no fault in memory is, and is not compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from ..detect.carried import Key
from ..digest import digest_rows
from ..digest.reference import stack_rows
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

    @property
    def statistics(self) -> bool:
        """Whether a norm keeps its averages in it."""
        return isinstance(self.module, _NormBase)


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
    """Digests of buffers after a step, and as the next one finds them.

    Args:
        buffers: with their numbers.
        model: whose forward tells when the buffers may be written to.
        trouble: called with a place and an exception for what goes wrong there.
    """

    def __init__(
        self,
        buffers: list[Buffer],
        model: torch.nn.Module,
        trouble: Callable[[str, BaseException], None],
    ) -> None:
        self._trouble = trouble
        self._buffers = {(KIND, buffer.layer.id): buffer for buffer in buffers}
        self._written: set[Key] = {k for k, buffer in self._buffers.items() if buffer.statistics}
        self._at_rest: set[Key] = set()
        self._left: dict[Key, _Left] = {}
        self._found: dict[Key, torch.Tensor] = {}
        self._changed: dict[Key, torch.Tensor] = {}  # as they were found
        self._due = False
        self.urgent = False
        self._handle = model.register_forward_pre_hook(_ForwardBegins(self))

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def on_devices(self) -> set[int]:
        """Numbers of those of which it cannot be learned here whether the forward writes to them.

        Their digests would have to be waited for.
        """
        tensors = self._tensors(self._buffers.keys() - self._written)
        return {number for (_, number), tensor in tensors.items() if not tensor.is_cpu}

    def changed_tensor(self, key: Key) -> torch.Tensor | None:
        """A buffer as it was when it was found to differ."""
        return self._changed.get(key)

    def after(self) -> PendingDigests:
        """Digests of all of them after a step."""
        tensors = self._tensors(self._buffers)
        rows = digest_rows(list(tensors.values()))
        values: list[Any] = rows.tolist() if rows.is_cpu else [None] * len(tensors)
        self._left = {
            key: _Left(tensor.data_ptr(), version(tensor), row)
            for (key, tensor), row in zip(tensors.items(), values, strict=True)
        }
        self._found, self._changed, self._due = {}, {}, True
        return PendingDigests(tuple(tensors), rows) if tensors else NO_DIGESTS

    def forward_begins(self) -> None:
        """The first forward after a step begins: what it writes to is at rest until now."""
        if not self._due or capturing():
            return
        try:
            self._due = False
            tensors = self._tensors(self._written)
            self._take(
                {k: found for k, found in tensors.items() if not self._was_written(k, found)}
            )
        except Exception as error:  # noqa: BLE001 - because it would surface in the user's forward
            self._trouble("digesting buffers", error)

    def before(self) -> PendingDigests:
        """Digests as the step found them, of those that are compared with what was left."""
        self.urgent, self._due = False, False
        rest = self._tensors([key for key in self._left if key not in self._written])
        self._written |= {key for key, tensor in rest.items() if self._was_written(key, tensor)}
        self._take({key: tensor for key, tensor in rest.items() if key not in self._written})
        for key in rest.keys() & self._changed.keys() - self._at_rest:
            # at its very first comparison: by an operation that does not tell
            self._written.add(key)
            del self._found[key], self._changed[key]
        self._at_rest |= rest.keys() - self._written
        found, self._found, self._left = self._found, {}, {}
        self.urgent = bool(self._changed)
        if not found:
            return NO_DIGESTS
        order = [key for key in self._buffers if key in found]
        return PendingDigests(tuple(order), stack_rows([found[key] for key in order]))

    def _take(self, tensors: dict[Key, torch.Tensor]) -> None:
        rows = digest_rows(list(tensors.values()))
        self._found.update(zip(tensors, rows.unbind(), strict=True))
        if not rows.is_cpu:
            return
        for (key, tensor), row in zip(tensors.items(), rows.tolist(), strict=True):
            if row != self._left[key].row:
                self._changed[key] = tensor.detach().clone()

    def _was_written(self, key: Key, tensor: torch.Tensor) -> bool:
        left = self._left.get(key)
        return left is None or (left.memory, left.version) != (tensor.data_ptr(), version(tensor))

    def _tensors(self, keys: Container[Key]) -> dict[Key, torch.Tensor]:
        found = {key: self._buffers[key].tensor() for key in self._buffers if key in keys}
        return {key: tensor for key, tensor in found.items() if tensor is not None}


class _ForwardBegins:
    """The hook on the model; in a copy of the model it does nothing."""

    def __init__(self, buffers: CarriedBuffers | None = None) -> None:
        self._buffers = None if buffers is None else weakref.ref(buffers)

    def __call__(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return  # as a part of the model it would be compiled, and the model again because of it
        buffers = None if self._buffers is None else self._buffers()
        if buffers is not None:
            buffers.forward_begins()

    def __reduce__(self) -> tuple[type[_ForwardBegins], tuple[()]]:
        return _ForwardBegins, ()
