"""Putting a model back: what a forward pass changed, apart from its outputs.

Restored are each module's mode, its parameters and submodules by identity, its buffers by value
and by identity, and its plain attributes: rebound ones, and what happened inside of lists,
dictionaries, sets, deques, arrays, tensors and generators that hang there. Of the parameters only
those of embeddings with max_norm are put back by value; a pass that writes to others is an error.
Not seen are objects of other classes.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from ..digest.reference import words

_UNCHANGEABLE = {bool, int, float, complex, str, bytes, type(None), FunctionType, MethodType}
_MANAGED = ("_parameters", "_buffers", "_modules")
_LARGEST = 10_000  # items of a container that are looked into, besides the container itself


@contextlib.contextmanager
def restored(model: torch.nn.Module) -> Iterator[None]:
    """Undo on leaving what the block changes in the model's modules and in the generators.

    The generators are those of torch, numpy and Python, on the CPU and the model's devices. One
    thing that cannot be put back does not keep the others from it.
    """
    kept = _Kept(model)
    try:
        yield
    finally:
        kept.put_back()


class _Kept:
    """What is to be put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._undo: list[Callable[[], object]] = []
        self._containers: list[tuple[Any, Sequence[Any]]] = []
        modules = list(model.modules())
        # each object once, and alive: its id could come again otherwise
        self._seen: dict[int, Any] = {id(x): x for x in (*modules, *model.buffers())}
        self._restored_parameters: set[int] = set()
        for module in modules:
            self._keep_module(module)
        self._versions = [
            (name, parameter, _version(parameter))
            for name, parameter in model.named_parameters()
            if id(parameter) not in self._restored_parameters
        ]
        self._keep_generators(model)

    def put_back(self) -> None:
        """Undo everything; raises the first error only after the rest is done."""
        errors: list[Exception] = [
            RuntimeError(f"the forward pass wrote to the parameter {name}")
            for name, parameter, version in self._versions
            if _version(parameter) != version
        ]
        steps: list[Callable[[], object]] = [
            partial(_refill, *pair) for pair in self._containers if not _holds(*pair)
        ]
        for undo in steps + self._undo:
            try:
                undo()
            except Exception as error:  # noqa: BLE001 - because the rest must be put back first
                errors.append(error)
        if errors:
            raise errors[0]

    def _keep_generators(self, model: torch.nn.Module) -> None:
        self._undo.append(partial(random.setstate, random.getstate()))
        self._undo.append(partial(np.random.set_state, np.random.get_state()))
        self._undo.append(partial(torch.set_rng_state, torch.get_rng_state()))
        for device in _cuda_devices(model):
            state = torch.cuda.get_rng_state(device)
            self._undo.append(partial(torch.cuda.set_rng_state, state, device))

    def _keep_module(self, module: torch.nn.Module) -> None:
        attributes = {k: v for k, v in vars(module).items() if k not in _MANAGED}
        self._undo.append(partial(_rebind, module, attributes, module.training))
        for managed in (module._parameters, module._buffers, module._modules):
            self._undo.append(partial(_rebind_names, managed, dict(managed.items())))
        for buffer in module._buffers.values():
            if buffer is not None:
                self._undo.append(_of_tensor(buffer, is_buffer=True))
        if attributes.get("max_norm") is not None:  # an embedding that clips what it looks up
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._restored_parameters.add(id(parameter))
                    self._undo.append(_of_tensor(parameter, is_buffer=True))
        for value in attributes.values():
            self._keep_value(value)

    def _keep_value(self, value: Any) -> None:
        """Keep what an attribute holds, and what that holds in turn."""
        if type(value) in _UNCHANGEABLE or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, (list, dict, set, deque)):
            kept = list(value.items() if isinstance(value, dict) else value) if value else ()
            self._containers.append((value, kept))
        elif isinstance(value, torch.nn.Module):  # one that its parent does not know of
            self._keep_module(value)
        elif isinstance(value, torch.Tensor):
            plain = value.layout == torch.strided and value.device.type != "meta"
            if plain and not isinstance(value, torch.nn.Parameter):
                self._undo.append(_of_tensor(value, is_buffer=False))
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._undo.append(_of_array(value))
        else:
            self._undo.extend(_of_generator(value))
        if isinstance(value, (list, tuple, dict, set, deque)) and 0 < len(value) <= _LARGEST:
            for item in list(value.values()) if isinstance(value, dict) else list(value):
                self._keep_value(item)


def _rebind(module: torch.nn.Module, attributes: dict[str, Any], training: bool) -> None:
    own = vars(module)
    for name in set(own) - set(attributes) - set(_MANAGED):
        del own[name]
    own.update(attributes)
    if module.training != training:  # scripted modules keep it elsewhere
        module.training = training


def _rebind_names(managed: Any, names: dict[str, Any]) -> None:
    """For a module's dictionary of parameters, buffers or submodules."""
    for name in set(managed.keys()) - set(names):
        del managed[name]
    for name, value in names.items():
        if name not in managed or managed[name] is not value:
            managed[name] = value


def _of_tensor(tensor: torch.Tensor, *, is_buffer: bool) -> Callable[[], None]:
    kept, version = tensor.detach().clone(), _version(tensor)

    def undo() -> None:
        # on a device a comparison would have to wait for it. A version tells that a tensor was
        # written to, except by the kernels that update a buffer, batch norm's for one
        if tensor.device.type == "cpu":
            changed = not _same_bits(tensor, kept)
        else:
            changed = is_buffer or _version(tensor) != version
        if changed:
            with torch.no_grad():
                tensor.copy_(kept)

    return undo


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.shape != other.shape:
        return False
    return torch.equal(words(tensor), words(other))


def _of_array(array: np.ndarray[Any, Any]) -> Callable[[], None]:
    kept = array.copy()

    def undo() -> None:
        if array.tobytes() != kept.tobytes():
            array[...] = kept

    return undo


def _refill(container: Any, kept: Sequence[Any]) -> None:
    container.clear()
    if isinstance(container, dict):
        for key, value in kept:
            container[key] = value
    elif isinstance(container, set):
        container.update(kept)
    else:
        container.extend(kept)


def _holds(container: Any, kept: Sequence[Any]) -> bool:
    # by identity: comparing values could meet a tensor, whose truth is not defined
    if len(container) != len(kept):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), kept, strict=True)
        return all(k is key and v is value for (k, v), (key, value) in pairs)
    return all(a is b for a, b in zip(container, kept, strict=True))


def _of_generator(value: Any) -> list[Callable[[], object]]:
    if isinstance(value, torch.Generator):
        return [partial(value.set_state, value.get_state())]
    if isinstance(value, random.Random):
        return [partial(value.setstate, value.getstate())]
    if isinstance(value, np.random.RandomState):
        return [partial(value.set_state, value.get_state())]
    if isinstance(value, np.random.Generator):
        return [partial(setattr, value.bit_generator, "state", value.bit_generator.state)]
    return []


def _cuda_devices(model: torch.nn.Module) -> list[torch.device]:
    found = {p.device for p in model.parameters() if p.device.type == "cuda"}
    return sorted(found, key=str)
