"""Putting a model back: what a forward pass changed, apart from its outputs.

Restored are each module's mode, its parameters and submodules by identity, its buffers by value
and by identity, and its plain attributes: rebound ones, and what happened inside of lists,
dictionaries, sets, deques, arrays, tensors and generators that hang there. Parameters are put
back where they were given another memory, and by value where that is asked for; a pass that
writes to others is an error. Version counters are put back with the values, so that a graph that
waits for its backward stays valid.

Not seen are objects of other classes, what functions and hooks hold in their closures, globals,
files, attributes of tensors, and generators that no module holds.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from .kept_values import Undo, global_generators, of_memory, of_tensor, of_value, version

_UNCHANGEABLE = {bool, int, float, complex, str, bytes, type(None), FunctionType, MethodType}
_MANAGED = ("_parameters", "_buffers", "_modules")
_LARGEST = 10_000  # items of a container that are looked into, besides the container itself


class ParameterWritten(RuntimeError):
    """The block wrote to parameters that were not kept by value.

    Args:
        names: of the parameters.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"the forward pass wrote to the parameter {', '.join(names)}")
        self.names = names


@contextlib.contextmanager
def restored(model: torch.nn.Module, by_value: Collection[str] = ()) -> Iterator[None]:
    """Undo on leaving what the block changes in the model's modules and in the generators.

    The generators are those of torch, numpy and Python, on the CPU and the model's devices. One
    thing that cannot be put back does not keep the others from it.

    Args:
        model: with all of its submodules.
        by_value: names of parameters whose values are put back too.

    Raises:
        ParameterWritten: the block wrote to another parameter, and that stays.
    """
    kept = Kept(model, by_value)
    try:
        yield
    finally:
        kept.put_back()


class Kept:
    """A model and the generators as they are now, to be put back later, once or several times.

    Args:
        model: with all of its submodules.
        by_value: names of parameters whose values are put back too.
        alone: without its submodules and the generators.
    """

    def __init__(
        self, model: torch.nn.Module, by_value: Collection[str], *, alone: bool = False
    ) -> None:
        self._inside: list[Undo] = []
        self._undo: list[Undo] = []
        modules = [model] if alone else list(model.modules())
        # each object once, and alive: its id could come again otherwise
        self._seen: dict[int, Any] = {id(x): x for x in (*model.modules(), *model.buffers())}
        for module in modules:
            self._keep_module(module)
        self._versions: list[tuple[str, torch.Tensor, tuple[int, ...]]] = []
        for name, parameter in model.named_parameters(recurse=not alone):
            self._keep_parameter(name, parameter, name in by_value)
        if not alone:
            devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
            self._undo.extend(global_generators(devices))

    def put_back(self) -> None:
        """Undo everything that happened since; an error is raised only after the rest is done.

        Raises:
            ParameterWritten: a parameter that is not kept by value was written to.
        """
        errors: list[Exception] = []
        written = [name for name, tensor, before in self._versions if version(tensor) != before]
        if written:
            errors.append(ParameterWritten(written))
        for undo in self._inside + self._undo:
            try:
                undo()
            except Exception as error:  # noqa: BLE001 - because the rest must be put back first
                errors.append(error)
        if errors:
            raise errors[0]

    def _keep_parameter(self, name: str, parameter: torch.nn.Parameter, by_value: bool) -> None:
        if by_value:
            self._undo.append(of_tensor(parameter, always=True))
        else:
            self._undo.append(of_memory(parameter))
            self._versions.append((name, parameter, version(parameter)))

    def _keep_module(self, module: torch.nn.Module) -> None:
        attributes = {k: v for k, v in vars(module).items() if k not in _MANAGED}
        self._undo.append(partial(_rebind, module, attributes, module.training))
        for managed in (module._parameters, module._buffers, module._modules):
            self._undo.append(partial(_rebind_names, managed, dict(managed.items())))
        for buffer in module._buffers.values():
            if buffer is not None:
                self._undo.append(of_tensor(buffer, always=True))
        for value in attributes.values():
            self._keep_value(value)

    def _keep_value(self, value: Any) -> None:
        """Keep what an attribute holds, and what that holds in turn."""
        if type(value) in _UNCHANGEABLE or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):  # one that its parent does not know of
            self._keep_module(value)
            return
        undo = of_value(value)
        if undo is not None:
            # first what containers hold: a module's own dictionaries may be among them
            is_container = isinstance(value, (list, dict, set, deque))
            (self._inside if is_container else self._undo).append(undo)
        if isinstance(value, (list, tuple, dict, set, deque)) and 0 < len(value) <= _LARGEST:
            for item in list(value.values()) if isinstance(value, dict) else list(value):
                self._keep_value(item)


def _rebind(module: torch.nn.Module, attributes: dict[str, Any], training: bool) -> None:
    own = vars(module)
    for name in set(own) - set(attributes) - set(_MANAGED):
        del own[name]
    own.update(attributes)
    if module.training != training:  # scripted and compiled modules keep it elsewhere
        module.training = training


def _rebind_names(managed: Any, names: dict[str, Any]) -> None:
    """For a module's dictionary of parameters, buffers or submodules."""
    for name in set(managed.keys()) - set(names):
        del managed[name]
    for name, value in names.items():
        if name not in managed or managed[name] is not value:
            managed[name] = value
