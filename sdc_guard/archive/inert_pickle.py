"""An unpickler that runs nothing: of a `torch.save` pickle it keeps containers and tensors.

Every global that a pickle names becomes a placeholder, except a few that are rebuilt by code of
our own. A tensor becomes a `StoredTensor`: which record holds its bytes, and how to read them.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,
}
# a table, not getattr: looking up a name in torch may import a module
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a file describes it; offset and stride in elements."""

    key: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype


class _Inert:
    """Stands for every global that a pickle names: takes any call and any state, does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __call__(self, *_: Any, **__: Any) -> _Inert:
        return self

    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, *_: Any) -> None: ...
    def append(self, _: Any) -> None:
        """Pickle fills lists and their subclasses by this name."""

    def extend(self, _: Any) -> None:
        """Likewise."""


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Any, stride: Any, *rest: Any
) -> StoredTensor:
    # _rebuild_tensor_v3 passes the dtype, because its storage has none
    dtypes = [item for item in rest if isinstance(item, torch.dtype)]
    bits = next((item for item in rest if type(item) is dict), {})
    return StoredTensor(
        storage.key,
        dtypes[0] if dtypes else storage.dtype,
        offset,
        tuple(shape),
        tuple(stride),
        conjugated=bool(bits.get("conj")),
        negated=bool(bits.get("neg")),
    )


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_from_type(rebuild: Any, _type: Any, arguments: Any, *_: Any) -> Any:
    return rebuild(*arguments)


_REBUILDERS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
}


class InertUnpickler(pickle.Unpickler):
    """Reads a `torch.save` pickle without importing or calling anything that it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Our own stand-in for the global `module.name`."""
        if (module, name) in _REBUILDERS:
            rebuild = _REBUILDERS[module, name]
            # a new function each time: a pickle can set attributes of what it names
            return lambda *arguments: rebuild(*arguments)
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict  # written in C: no pickle can set an attribute of it
        if module in ("torch", "torch.storage") and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        """A storage that is kept in a record of the file."""
        if isinstance(pid, tuple) and len(pid) >= 3 and pid[0] == "storage":
            dtype = pid[1] if isinstance(pid[1], torch.dtype) else torch.uint8
            return _Storage(str(pid[2]), dtype)
        return _Inert()


def stored_tensors(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of an unpickled structure by their dotted path."""
    if isinstance(node, StoredTensor):
        yield ".".join(path), node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from stored_tensors(value, (*path, str(key)))
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from stored_tensors(value, (*path, str(index)))


def by_path(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Dotted paths to tensors; a path that comes again (keys may hold dots) is numbered."""
    named: dict[str, Any] = {}
    for path, tensor in found:
        name, number = path, 1
        while name in named:
            number += 1
            name = f"{path}#{number}"
        named[name] = tensor
    return named
