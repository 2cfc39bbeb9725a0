"""H, S1 and S2 of words in host memory, as operations on vectors of 64-bit lanes.

Every processor does them, some in several instructions, and all to the same bits: they are
integers. Written as a plain loop they depend on what a compiler makes of it, and S2 costs a third
multiplication. Here a lane adds up its words, P, and also what P is after each word, Q: after n
words Σ (n - t)·w_t = Q, t counting from 0, so that Σ t·w_t = n·P - Q.

What limits it is the number of vector instructions, so that the units for single numbers take
the last of nine words: that is 15 % faster (Zen 4).

numba compiles it into its callers, and keeps their machine code as long as their own file is the
same: after a change here delete `__pycache__/*.nbi`, or the old code goes on running.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..compiled import read_ahead

K: Final = 0x9E3779B97F4A7C15
M1: Final = 0xBF58476D1CE4E5B9
M2: Final = 0x94D049BB133111EB
_WIDE: Final = 16  # lanes of a vector
_VECTORS: Final = 2  # that are taken in at a time
_SINGLE: Final = 4  # words that are taken in beside them, each by itself
_TOGETHER: Final = _WIDE * _VECTORS
_AHEAD: Final = 2048  # bytes: a short run is soon over, and the processor starts anew to read ahead
_LINE: Final = 64  # bytes that memory is read by
STEP: Final = _TOGETHER + _SINGLE  # words that are taken in at a time
_LONG, _LONGS = ir.IntType(64), ir.VectorType(ir.IntType(64), _WIDE)


def _of_size(size: int) -> Any:
    """The intrinsic for words of 1, 2, 4 or 8 bytes."""

    @intrinsic  # type: ignore[untyped-decorator] # numba has no types
    def word_sums(context: Any, address: Any, steps: Any, first: Any, stride: Any) -> Any:
        del context
        several: Any = getattr(types, "UniTuple")  # noqa: B009 - because numba exports it without a type
        number, index = types.int64, types.uint64
        signature = several(types.uint64, 3)(number, number, index, index)
        return signature, lambda *given: _generate(size, *given)

    return word_sums


def _generate(size: int, within: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    address, steps, first, stride = arguments
    together = builder.mul(steps, _LONG(_TOGETHER))
    behind = builder.add(address, builder.mul(together, _LONG(size)))
    after = builder.add(first, builder.mul(together, stride))
    vectors = _Part(builder, size, _LONGS, first, stride)
    single = _Part(builder, size, _LONG, after, stride)
    with cgutils.for_range(builder, steps, intp=_LONG) as loop:
        start = builder.add(address, builder.mul(loop.index, _LONG(size * _TOGETHER)))
        beside = builder.add(behind, builder.mul(loop.index, _LONG(size * _SINGLE)))
        for line in range(0, size * _TOGETHER, _LINE):
            read_ahead(builder, builder.add(start, _LONG(_AHEAD + line)))
        for vector in range(_VECTORS):
            vectors.take(builder.add(start, _LONG(size * _WIDE * vector)))
            for other in range(_SINGLE * vector // _VECTORS, _SINGLE * (vector + 1) // _VECTORS):
                single.take(builder.add(beside, _LONG(size * other)))
    end = builder.add(after, builder.mul(builder.mul(steps, _LONG(_SINGLE)), stride))
    totals = tuple(
        builder.add(_added(builder, lanes), one)
        for lanes, one in zip(vectors.sums(after), single.sums(end), strict=True)
    )
    return within.make_tuple(builder, signature.return_type, totals)


class _Part:
    """Words one behind the other that are taken in one by one, or _WIDE at a time.

    Args:
        kind: of what is taken in at a time: 64-bit numbers.
        first: index of the first word.
        stride: from one word's index to the next one's.
    """

    def __init__(self, builder: Any, size: int, kind: Any, first: Any, stride: Any) -> None:
        self._builder, self._size, self._kind, self._stride = builder, size, kind, stride
        self._wide = _WIDE if kind is _LONGS else 1
        self._h, self._p, self._q, self._salt = (_Sum(builder, kind) for _ in range(4))
        self._salt.set(builder.mul(self._indices(first), self._same(K)))
        self._step = self._filled(builder.mul(stride, _LONG(K * self._wide % 2**64)))

    def take(self, address: Any) -> None:
        """Take in what lies at an address: the words that come next."""
        words = self._load(address)
        self._h.add(self._mixed(words, self._salt.get()))
        self._p.add(words)
        self._q.add(self._p.get())
        self._salt.add(self._step)

    def sums(self, end: Any) -> tuple[Any, Any, Any]:
        """H, S1 and S2 of each lane; `end`: the index that would come next."""
        builder = self._builder
        # lane l has in take t the word of index first + stride·(_wide·t + l): its weight, less one
        weights = builder.add(self._indices(end), self._same(1))
        less = builder.mul(
            builder.mul(self._q.get(), self._same(self._wide)), self._filled(self._stride)
        )
        s2 = builder.sub(builder.mul(weights, self._p.get()), less)
        return self._h.get(), self._p.get(), s2

    def _mixed(self, words: Any, salt: Any) -> Any:
        """mix64 of the words' bits xor their salts."""
        builder = self._builder

        def folded(value: Any, by: int) -> Any:
            return builder.xor(value, builder.lshr(value, self._same(by)))

        if 8 * self._size <= 30:  # the shift leaves nothing of the word: one xor of all three
            mixed = builder.xor(folded(salt, 30), words)
        else:
            mixed = folded(builder.xor(salt, words), 30)
        mixed = builder.mul(mixed, self._same(M1))
        mixed = builder.mul(folded(mixed, 27), self._same(M2))
        return folded(mixed, 31)

    def _load(self, address: Any) -> Any:
        word = ir.IntType(8 * self._size)
        kind = word if self._wide == 1 else ir.VectorType(word, self._wide)
        pointer = self._builder.inttoptr(address, ir.PointerType(kind))
        words = self._builder.load(pointer, align=1)
        return words if self._size == 8 else self._builder.zext(words, self._kind)

    def _indices(self, first: Any) -> Any:
        """Of the words that are taken in together, from index `first` on."""
        if self._wide == 1:
            return first
        lanes = self._builder.mul(self._filled(self._stride), _LONGS(list(range(_WIDE))))
        return self._builder.add(self._filled(first), lanes)

    def _filled(self, value: Any) -> Any:
        """A number that is known when it runs, in every lane."""
        if self._wide == 1:
            return value
        undefined = ir.Constant(_LONGS, ir.Undefined)
        one = self._builder.insert_element(undefined, value, ir.IntType(32)(0))
        nowhere = ir.VectorType(ir.IntType(32), _WIDE)([0] * _WIDE)
        return self._builder.shuffle_vector(one, undefined, nowhere)

    def _same(self, value: int) -> Any:
        value %= 2**64
        return _LONG(value) if self._wide == 1 else _LONGS([value] * _WIDE)


class _Sum:
    """What is added to, in a register once it is compiled."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self._builder = builder
        self._place = cgutils.alloca_once(builder, kind)
        self.set(ir.Constant(kind, None if kind is _LONGS else 0))

    def get(self) -> Any:
        return self._builder.load(self._place)

    def set(self, value: Any) -> None:
        self._builder.store(value, self._place)

    def add(self, value: Any) -> None:
        self.set(self._builder.add(self.get(), value))


def _added(builder: Any, lanes: Any) -> Any:
    total = builder.extract_element(lanes, ir.IntType(32)(0))
    for lane in range(1, _WIDE):
        total = builder.add(total, builder.extract_element(lanes, ir.IntType(32)(lane)))
    return total


# in a compiled function: (H, S1, S2) as uint64 of STEP·steps words at an address, which have every
# `stride`-th index in the whole tensor from `first` on
sums_of_1: Any = _of_size(1)
sums_of_2: Any = _of_size(2)
sums_of_4: Any = _of_size(4)
sums_of_8: Any = _of_size(8)
