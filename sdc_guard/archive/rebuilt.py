"""The few globals of a `torch.save` pickle that are rebuilt, by code of our own, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np
import torch

from .plain_keys import plain_key

STORAGE_DTYPES: Final = {
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
DTYPES: Final = {name: kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
_MOST_DIMENSIONS: Final = 64  # as many as torch.Tensor can have
_WORD: Final = 1 << 63  # sizes, strides and offsets are smaller: torch keeps them in 64 bits
_LONGEST_KEY: Final = 1_000  # characters
_NUMPY_NUMBERS: Final = {f"{kind}{size}" for kind in "iuf" for size in (1, 2, 4, 8)} | {"b1"}


@dataclass(eq=False, slots=True, repr=False)
class Inert:
    """Stands for a global that a pickle names, or for what calling it would have given.

    Attributes:
        name: of the global, or of the class of what it would have given.
        arguments: of the call; None for the global itself.
        state: what the pickle would have set; None if nothing.
        items: what it would have appended, and the values that it would have set by key.
    """

    name: str
    arguments: tuple[Any, ...] | None = None
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.name  # alone: what it was given may be without an end


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
class Storage:
    """Memory as a file describes it.

    Attributes:
        key: names the record that holds it.
        numel: elements, as the pickle claims; not checked.
        offset: elements of the record before it: files before 1.6 could store parts of another.
    """

    key: str
    dtype: torch.dtype
    numel: int = 0
    offset: int = 0


@dataclass(eq=False)
class NumpyDtype:
    """A numpy dtype of plain numbers: its letter and size, and the order of its bytes."""

    code: str
    order: str = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.order = state[1]


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    if len(shape) > _MOST_DIMENSIONS or len(stride) > _MOST_DIMENSIONS:
        raise UnpicklingError("a tensor of too many dimensions")
    if type(storage) is not Storage:
        raise UnpicklingError("a tensor without a storage")
    numbers = (offset, *shape, *stride)
    if {*map(type, numbers)} != {int} or max(numbers) >= _WORD or min(numbers) < -_WORD:
        raise UnpicklingError("a tensor whose shape is none")
    # _rebuild_tensor_v3 passes the dtype, because its storage has none
    dtypes = [item for item in rest if isinstance(item, torch.dtype)]
    bits = next((item for item in reversed(rest) if type(item) is dict), {})
    return StoredTensor(
        storage.key,
        dtypes[0] if dtypes else storage.dtype,
        offset + storage.offset,
        tuple(shape),
        tuple(stride),
        conjugated=bool(bits.get("conj")),
        negated=bool(bits.get("neg")),
    )


def _first(data: Any, *_: Any) -> Any:
    return data


def _from_type(rebuild: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    if type(arguments) is not tuple:
        raise UnpicklingError("arguments that are no tuple")
    if rebuild not in _TENSORS:
        return Inert(
            kind.name if isinstance(kind, Inert) else "a tensor of another kind", arguments
        )
    return rebuild(*arguments)


def _dict(*pairs: Any) -> dict[Any, Any]:
    """Of Python 3 without arguments, of Python 2 with the list of its items."""
    if not pairs:
        return {}
    return {_short_key(key): value for key, value in pairs[0]}


def _short_key(key: Any) -> Any:
    found, operations = plain_key(key)
    if operations > _LONGEST_KEY:
        raise UnpicklingError("a key of this length is not read")
    return found


def _counter(counts: Any = None) -> dict[Any, Any]:
    return dict(counts) if type(counts) is dict else {}


def _default_dict(*_: Any) -> dict[Any, Any]:
    return {}


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """How protocol 2 writes bytes."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise UnpicklingError("bytes in an encoding that is not read")
    return text.encode("latin1")


def _numpy_dtype(code: Any, *_: Any) -> NumpyDtype:
    return NumpyDtype(code if type(code) is str else "")


def _numpy_scalar(dtype: Any, content: Any = b"") -> Any:
    if not isinstance(dtype, NumpyDtype) or dtype.code not in _NUMPY_NUMBERS:
        return Inert("numpy scalar", (dtype, content))
    return np.frombuffer(content, np.dtype(dtype.order + dtype.code), count=1)[0].item()


_TENSORS = (_tensor, _first)
REBUILDERS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): _first,
    ("collections", "OrderedDict"): _dict,
    ("collections", "Counter"): _counter,
    ("collections", "defaultdict"): _default_dict,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _numpy_dtype,
    ("numpy.core.multiarray", "scalar"): _numpy_scalar,
    ("numpy._core.multiarray", "scalar"): _numpy_scalar,
}
