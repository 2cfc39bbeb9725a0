"""Functions over raw host memory, compiled by numba when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator] # numba has no types
def _as_pointer(context: Any, address: Any) -> Any:
    del context

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic  # type: ignore[untyped-decorator] # as above
def _prefetch(context: Any, address: Any) -> Any:
    del context

    def generate(within: Any, builder: Any, _: Any, arguments: Any) -> Any:
        read_ahead(builder, arguments[0])
        return within.get_dummy_value()

    return types.void(address), generate


def read_ahead(builder: Any, address: Any) -> None:
    """Write into a function that is being built that the memory at an address be read ahead."""
    number = ir.IntType(32)
    kinds = [cgutils.voidptr_t, number, number, number]
    load = builder.module.declare_intrinsic(
        "llvm.prefetch", [cgutils.voidptr_t], ir.FunctionType(ir.VoidType(), kinds)
    )
    # to read data once: not in place of what the caches hold for the training
    options = [number(option) for option in (0, 0, 1)]
    builder.call(load, [builder.inttoptr(address, cgutils.voidptr_t), *options])


def address(tensor: torch.Tensor) -> int:
    """Where a tensor's elements begin.

    Raises:
        ValueError: it only stands for other tensors (a distributed one does), which have them.
    """
    found = tensor.data_ptr()
    if not found and tensor.numel():
        raise ValueError(f"a {type(tensor).__name__} has no memory of its own to read")
    return found


# in a compiled function: an address as a pointer. Its caller gives no context: numba does
pointer: Any = _as_pointer
# in a compiled function: have the memory at an address read ahead. Any address will do
prefetch: Any = _prefetch


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Compile a function without Python's lock, and keep the machine code for the next process.

    Args:
        **options: of numba.njit.
    """

    def compile_it(function: Any) -> Any:
        try:
            return nb.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache can be written
            return nb.njit(nogil=True, **options)(function)

    return compile_it
