"""How single values are put back: tensors, arrays, containers and generators.

Each function keeps a value and returns what undoes later changes to it in place.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..digest.reference import words

Undo = Callable[[], object]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds; other tensors are their own."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
        return part


def version(tensor: torch.Tensor) -> tuple[int, ...]:
    """What grows when a tensor is written to, except through .data and by some kernels.

    Kernels that update a buffer, batch norm's for one, are among them.
    """
    parts = (tensor, local_part(tensor)) if hasattr(tensor, "to_local") else (tensor,)
    return tuple(-1 if part.is_inference() else part._version for part in parts)


def of_tensor(tensor: torch.Tensor, *, always: bool) -> Undo:
    """Keep a tensor's values, and its version, which a graph checks that waits for its backward.

    Args:
        tensor: of any layout and device.
        always: on a device, copy back whatever the version says. There a comparison of the
            values would have to wait for the device.
    """
    part, before, memory = local_part(tensor), version(tensor), of_memory(tensor)
    kept = part.detach().clone()
    versions = [
        _unsafe_preserve_version_counter(each)
        for each in {id(each): each for each in (tensor, part)}.values()
        if not each.is_inference()
    ]

    def undo() -> None:
        memory()
        if _changed(part, kept, always or version(tensor) != before):
            with torch.no_grad():
                part.copy_(kept)
        for each in versions:
            each.__exit__(None, None, None)

    return undo


def _changed(tensor: torch.Tensor, kept: torch.Tensor, otherwise: bool) -> bool:
    if tensor.device.type == "cpu":
        # a layout or a class of tensors that cannot be compared is copied back
        with contextlib.suppress(NotImplementedError, RuntimeError, TypeError, KeyError):
            return not _same_bits(tensor, kept)
        return True
    # no operation can have written to elements that share their memory
    return otherwise and all(
        step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.shape != other.shape:
        return False
    return torch.equal(words(tensor), words(other))


def of_memory(tensor: torch.Tensor) -> Undo:
    """Keep which memory a tensor's values lie in, which assigning to .data or resizing changes."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    # values that DeepSpeed moves between ranks are its own to keep track of
    if not plain or tensor.device.type == "meta" or hasattr(tensor, "ds_id"):
        return lambda: None
    kept = tensor.detach()

    def undo() -> None:
        if tensor.data_ptr() != kept.data_ptr() or tensor.shape != kept.shape:
            tensor.data = kept

    return undo


def of_array(array: np.ndarray[Any, Any]) -> Undo:
    """Keep an array's elements; they must not be Python objects."""
    kept = array.copy()

    def undo() -> None:
        if array.tobytes() != kept.tobytes():
            array[...] = kept

    return undo


def of_container(container: Any) -> Undo:
    """Keep which objects a list, dictionary, set or deque holds, in their order."""
    items: Sequence[Any] = ()
    if container:
        items = list(container.items() if isinstance(container, dict) else container)

    def undo() -> None:
        if not _holds(container, items):
            _refill(container, items)

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


def of_value(value: Any) -> Undo | None:
    """Keep what an object of a known class holds; None for other classes."""
    if isinstance(value, (list, dict, set, deque)):
        return of_container(value)
    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type != "meta"
        if not plain or isinstance(value, torch.nn.Parameter):
            return None
        return of_tensor(value, always=False)
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else of_array(value)
    return _of_generator(value)


def _of_generator(value: Any) -> Undo | None:
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None


def global_generators(devices: set[torch.device]) -> list[Undo]:
    """Keep the generators of Python, numpy and torch, on the CPU and the given devices."""
    undo: list[Undo] = [
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state(legacy=False)),
        partial(torch.set_rng_state, torch.get_rng_state()),
    ]
    for device in sorted(devices, key=str):
        if device.type in ("cpu", "meta"):
            continue
        backend = torch.get_device_module(device)
        if hasattr(backend, "get_rng_state"):
            # backends of a single device take no device
            place = () if device.index is None else (device,)
            undo.append(partial(backend.set_rng_state, backend.get_rng_state(*place), *place))
    return undo
