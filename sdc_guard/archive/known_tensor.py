"""The thirty operations that `torch.save` writes for a tensor, carried out at once.

It is only quicker: what the machine has afterwards on its stack, remembered and counted is what
it would have, operation by operation. What looks any different is left to it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import torch

from .rebuilt import REBUILDERS, StoredTensor

_GET, _PUT, _INT = rb"(h.|j.{4})", rb"(q.|r.{4})", rb"(?:K.|M..|J.{4})"
_SIZES: Final = rb"(?:(" + _INT + rb"{1,3})([\x85-\x87])|\((" + _INT + rb"{4,64})t)" + _PUT
_TENSOR: Final = re.compile(
    rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0([0-9]{1,9})" + _PUT + _GET + rb"(" + _INT + rb")t"
    + _PUT + rb"Q(" + _INT + rb")" + _SIZES + _SIZES
    + rb"\x89" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
_REMEMBERED: Final = 4096  # the same few numbers and shapes come in every file
_REBUILD: Final = REBUILDERS["torch._utils", "_rebuild_tensor_v2"]
_NO_HOOKS: Final = REBUILDERS["collections", "OrderedDict"]


def known_tensor(machine: Any, at: int) -> int:
    """Put the tensor that is described at `at` in place of its function on the stack.

    Args:
        machine: an InertUnpickler.
        at: of the first mark.

    Returns:
        where what follows begins; 0 if nothing was done.
    """
    if not machine.stack or machine.stack[-1] is not _REBUILD:
        return 0
    found = _TENSOR.match(machine.data, at)
    if found is None:
        return 0
    (word, kind, length, name, put_name, device, numel, put_id, offset,
     few, form, many, put_shape, few_steps, form_steps, many_steps, put_stride,
     hooks, put_hooks, put_arguments, put_tensor) = found.groups()  # fmt: skip
    gets = (*map(_index, (word, kind, device, hooks)),)
    puts = (*map(_index, (put_name, put_id, put_shape, put_stride, put_hooks, put_arguments,
                          put_tensor)),)  # fmt: skip
    shape, stride = _numbers(few, form, many), _numbers(few_steps, form_steps, many_steps)
    # what is remembered under a number that is asked for here would change on the way
    if shape is None or stride is None or len(name) != length[0] or not _apart(gets, puts):
        return 0
    memo, nested = machine.memo, machine.nested
    told, dtype, place, empty = map(memo.get, gets)
    if not (type(told) is type(place) is str and told == "storage"):
        return 0
    if type(dtype) is not torch.dtype or empty is not _NO_HOOKS:
        return 0
    machine.spend(30)
    text = name.decode()
    pid = (told, dtype, text, place, _number(numel))
    storage = machine.persistent_load(pid)
    none: dict[Any, Any] = {}
    start = _number(offset)
    arguments = (storage, start, shape, stride, False, none)
    tensor = StoredTensor(text, dtype, start + storage.offset, shape, stride)
    for made in (pid, shape, stride):
        nested.pop(id(made), None)
    nested[id(arguments)] = (1, 6 + len(shape) + len(stride))
    memo.update(zip(puts, (text, pid, shape, stride, none, arguments, tensor), strict=True))
    machine.stack[-1] = tensor
    return found.end()


def _apart(gets: tuple[int, ...], puts: tuple[int, ...]) -> bool:
    """Whether no number of `gets` is among `puts`; they mostly count up."""
    return max(gets) < min(puts) or set(gets).isdisjoint(puts)


@lru_cache(_REMEMBERED)
def _index(operation: bytes) -> int:
    """Of a get or a put."""
    return int.from_bytes(operation[1:], "little")


@lru_cache(_REMEMBERED)
def _number(operation: bytes) -> int:
    """That an operation says."""
    return int.from_bytes(operation[1:], "little", signed=operation[0] == 0x4A)


@lru_cache(_REMEMBERED)
def _numbers(few: bytes | None, form: bytes | None, many: bytes | None) -> tuple[int, ...] | None:
    """Of a tuple; None if it takes another count of them than there are."""
    content, at, found = few or many or b"", 0, []
    while at < len(content):
        size = 2 if content[at] == 0x4B else 3 if content[at] == 0x4D else 5
        found.append(_number(content[at : at + size]))
        at += size
    return tuple(found) if form is None or len(found) == form[0] - 0x84 else None
