"""An unpickler that runs nothing: of a `torch.save` pickle it keeps containers and tensors.

Every global that a pickle names becomes a placeholder, except a few that are rebuilt by code of
our own. A tensor becomes a `StoredTensor`: which record holds its bytes, and how to read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pickle import UnpicklingError
from types import FunctionType
from typing import Any, BinaryIO, Final

import torch

from .known_tensor import known_tensor
from .pickle_machine import PickleMachine
from .rebuilt import DTYPES, REBUILDERS, STORAGE_DTYPES, Inert, Storage, StoredTensor
from .walk import leaves

__all__ = ["Inert", "InertUnpickler", "Storage", "StoredTensor", "by_path", "stored_tensors"]

MOST_BYTES: Final = 256 * 2**20  # of a pickle: a million tensors take 110 MB
_LONGEST_KEY: Final = 200  # characters of a storage's: they are numbers
_WORD: Final = 1 << 63
_SIZED: Final = frozenset((dict, list, tuple, str, bytes))  # exactly: nothing makes others
_REBUILT: Final = StoredTensor.__module__


class InertUnpickler(PickleMachine):
    """Reads a `torch.save` pickle without importing or calling anything that it names.

    Args:
        source: the pickle, or a file at its beginning.
        start: where in `source` it begins.

    Attributes:
        storages: key of each storage that it names, to its dtype and number of elements.
    """

    def __init__(self, source: BinaryIO | bytes, start: int = 0) -> None:
        data = source if isinstance(source, bytes) else source.read(MOST_BYTES + 1)
        if not isinstance(source, bytes) and len(data) > MOST_BYTES:
            raise UnpicklingError(f"larger than {MOST_BYTES:,} bytes")
        super().__init__(data, start)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Our own stand-in for the global `module.name`: data, or a function that makes data."""
        if rebuild := REBUILDERS.get((module, name)):
            return rebuild
        if module in ("torch", "torch.storage") and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        return Inert(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """A storage that is kept in a record of the file."""
        if not isinstance(pid, tuple) or len(pid) < 3:
            return Inert("persistent object")
        if pid[0] == "module":  # a class beside its source code, in files before 1.6
            return pid[1]
        if pid[0] != "storage":
            return Inert("persistent object")
        dtype = pid[1] if isinstance(pid[1], torch.dtype) else torch.uint8
        numel = pid[4] if len(pid) > 4 and type(pid[4]) is int else 0
        view = pid[5] if len(pid) > 5 and type(pid[5]) is tuple else ()
        offset = view[1] if len(view) == 3 and type(view[1]) is int else 0
        if not -_WORD <= numel < _WORD or not -_WORD <= offset < _WORD:
            raise UnpicklingError("a storage of a size that none has")
        storage = Storage(storage_key(pid[2]), dtype, numel, offset)
        self.storages.setdefault(storage.key, storage)
        return storage

    def make(self, what: Any, arguments: tuple[Any, ...], *, new: bool) -> Any:
        """What a stand-in makes; of a placeholder, another."""
        if type(what) is type and not arguments:
            return what()
        if isinstance(what, Inert):
            # copyreg._reconstructor and the like say the class in their first argument
            named = arguments[0] if arguments and isinstance(arguments[0], Inert) else None
            inner = named is not None and named.arguments is None and "._reconstruct" in what.name
            return Inert(named.name if named and inner else what.name, arguments)
        if arguments:
            self.spend(sum([len(x) for x in arguments if type(x) in _SIZED]))
        if isinstance(what, type):
            return what.__new__(what, *arguments) if new else what(*arguments)
        if isinstance(what, FunctionType):
            return what(*arguments)
        raise UnpicklingError("a call of what is no function")

    def build(self, target: Any, state: Any) -> None:
        """Keep the state of a placeholder; give a stand-in of a subclass its attributes."""
        if isinstance(target, Inert):
            target.state = state
            return
        if type(state) in _SIZED:
            self.spend(len(state))
        if setter := getattr(type(target), "__setstate__", None):
            setter(target, state)
        elif type(target).__module__ != _REBUILT and not isinstance(target, (dict, FunctionType)):
            values = getattr(target, "__dict__", None)
            if isinstance(values, dict) and isinstance(state, dict):
                by_name = all(type(key) is str for key in state)
                values.update(state if by_name else {str(k): v for k, v in state.items()})

    def known(self, at: int) -> int:
        """A tensor as torch.save describes it."""
        return known_tensor(self, at)

    def extend(self, target: Any, items: list[Any]) -> None:
        """Keep what a placeholder is given."""
        if isinstance(target, Inert):
            target.items.extend(items)

    def set_items(self, target: Any, items: list[tuple[Any, Any]]) -> None:
        """Likewise."""
        if isinstance(target, Inert):
            target.items.extend(value for _, value in items)


def storage_key(key: Any) -> str:
    """What a file calls a storage: a number, or a text that is one.

    Raises:
        UnpicklingError: it is neither, or as long as none is.
    """
    if type(key) is str and len(key) <= _LONGEST_KEY:
        return key
    if type(key) is int and -_WORD <= key < _WORD:
        return str(key)
    raise UnpicklingError("a storage without a name")


def stored_tensors(root: Any, size: int) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of an unpickled structure by their dotted path.

    Args:
        size: bytes of its pickle.

    Raises:
        RecursionError: containers in containers, deeper than is meant, or too many values.
    """
    for name, value in leaves(root, size, inside=False):
        if isinstance(value, StoredTensor):
            yield name, value


def by_path(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Dotted paths to tensors; a path that comes again (keys may hold dots) is numbered."""
    named: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for path, tensor in found:
        name = path
        while name in named:
            numbers[path] = numbers.get(path, 1) + 1
            name = f"{path}#{numbers[path]}"
        named[name] = tensor
    return named
