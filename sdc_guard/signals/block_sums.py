"""Sums over a block of float32, in an order that no compiler changes.

A compiler that may reorder a sum makes other bits of it for each processor, and even for each way
by which the same function came to be compiled. What is recorded here is compared bit by bit with
what a replay records, so the order is a part of the format: 64 lanes, element i in lane i mod 64,
added as (0 to 15) + (16 to 31), (32 to 47) + (48 to 63), both, and then by halves. It is written
as operations on vectors of 16, which every processor does exactly, some in several instructions.

numba compiles it into its callers, and keeps their machine code as long as their own file is the
same: after a change here delete `__pycache__/*.nbi`, or the old code goes on running.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

BLOCK: Final = 512  # elements
_WIDE: Final = 16  # elements of a vector
_GROUPS: Final = 4  # vectors at a time: each sum waits for the one before it in its lane
_FLOAT, _INT, _BIT = ir.FloatType(), ir.IntType(32), ir.IntType(1)
_FLOATS, _INTS = ir.VectorType(_FLOAT, _WIDE), ir.VectorType(_INT, _WIDE)
_ALIGNMENT: Final = 4  # bytes


@intrinsic  # type: ignore[untyped-decorator] # numba has no types
def _block_sums(context: Any, address: Any) -> Any:
    del context
    of_two: Any = getattr(types, "UniTuple")  # noqa: B009 - because numba exports it without a type
    several: Any = getattr(types, "Tuple")  # noqa: B009 - likewise
    return several((of_two(types.float32, 2), of_two(types.int32, 2)))(address), _generate


def _generate(within: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    sums = [_Lanes(builder, _FLOATS) for _ in range(2 * _GROUPS)]
    counts = [_Lanes(builder, _INTS) for _ in range(2 * _GROUPS)]
    number = arguments[0].type
    stride = _GROUPS * _WIDE
    with cgutils.for_range(builder, number(BLOCK // stride), intp=number) as loop:
        start = builder.add(arguments[0], builder.mul(loop.index, number(4 * stride)))
        for group in range(_GROUPS):
            place = builder.add(start, number(4 * _WIDE * group))
            pointer = builder.inttoptr(place, ir.PointerType(_INTS))
            words = builder.load(pointer, align=_ALIGNMENT)
            _add(builder, words, sums[2 * group : 2 * group + 2], counts[2 * group :][:2])
    squares, sizes = (_reduced(builder, sums[kind::2], builder.fadd) for kind in (0, 1))
    zeros = _reduced(builder, counts[0::2], builder.add)
    largest = _reduced(builder, counts[1::2], lambda a, b: _larger(builder, a, b))
    pairs = (
        within.make_tuple(builder, part, values)
        for part, values in zip(
            signature.return_type.types, ((squares, sizes), (zeros, largest)), strict=True
        )
    )
    return within.make_tuple(builder, signature.return_type, tuple(pairs))


class _Lanes:
    """A vector that is added to, in registers once it is compiled."""

    def __init__(self, builder: Any, kind: ir.VectorType) -> None:
        self._builder = builder
        self.place = cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, None), self.place)

    def get(self) -> Any:
        return self._builder.load(self.place)

    def set(self, value: Any) -> None:
        self._builder.store(value, self.place)


def _add(builder: Any, words: Any, sums: list[_Lanes], counts: list[_Lanes]) -> None:
    """Take a vector of elements in."""
    sizes = builder.and_(words, _INTS([0x7FFFFFFF] * _WIDE))  # without their signs
    values = builder.bitcast(sizes, _FLOATS)
    (squares, total), (zeros, largest) = sums, counts
    squares.set(builder.fadd(squares.get(), builder.fmul(values, values)))
    total.set(builder.fadd(total.get(), values))
    none = builder.icmp_signed("==", sizes, ir.Constant(_INTS, None))
    zeros.set(builder.add(zeros.get(), builder.zext(none, _INTS)))
    largest.set(_larger(builder, largest.get(), sizes))


def _larger(builder: Any, one: Any, two: Any) -> Any:
    return builder.select(builder.icmp_signed(">", one, two), one, two)


def _reduced(builder: Any, lanes: list[_Lanes], join: Any) -> Any:
    """The one number of four vectors' lanes."""
    first, second, third, fourth = (part.get() for part in lanes)
    whole = join(join(first, second), join(third, fourth))
    width = _WIDE
    while width > 1:
        width //= 2
        halves = ir.VectorType(_INT, width)
        low, high = halves(list(range(width))), halves(list(range(width, 2 * width)))
        whole = join(
            builder.shuffle_vector(whole, whole, low), builder.shuffle_vector(whole, whole, high)
        )
    return builder.extract_element(whole, _INT(0))


# in a compiled function: ((Σg², Σ|g|) as float32, (zeros, largest as int32 bits without its sign))
# of the BLOCK elements of float32 at an address
block_sums: Any = _block_sums
