"""The pickle format, read by a machine of our own that imports nothing and has bounds.

`pickle.Unpickler` obeys what a file claims: a memo index of four bytes makes it reserve and fill
gigabytes, and a key of nested tuples, each holding the one before twice, is hashed for longer
than anyone waits. Here memory and time are at most proportional to the pickle's length. The
format is that of the standard library's `pickletools`, protocols 0 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat
from operator import length_hint
from pickle import UnpicklingError
from typing import Any, Final

from .pickle_steps import run
from .plain_keys import plain_key
from .rebuilt import Inert

MOST_OPERATIONS: Final = 20_000_000  # a structure of a million tensors takes about as many
_DEEPEST, _LARGEST = 50, 1_000_000  # of tuples in tuples: depth, and elements when written out
_LONGEST_INT: Final = 1024  # bytes, which Python still writes out; what is longer is no number
_SHORT_KEY: Final = 100  # characters
_MARK = object()


class PickleMachine:
    """Reads one pickle out of `data`.

    Args:
        data: what holds the pickle.
        start: where it begins.

    Attributes:
        at: where the machine reads; after `load` the first byte after the pickle.
        stack: what operations work on, a mark where a list of items begins.
        memo: what was remembered, by number.
        nested: id of a tuple of tuples, to its depth and size.
        most: operations that may be carried out.
    """

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self.at = start
        self.stack: list[Any] = []
        self.limit(MOST_OPERATIONS)
        self.memo: dict[int, Any] = {}
        self.nested: dict[int, tuple[int, int]] = {}

    def limit(self, operations: int) -> None:
        """How much may be done for this file, by all calls of `load` together.

        Operations count down as they are carried out, and what they copy counts besides, against
        what is left then: at most twice as much is done in all.
        """
        self.most = operations
        self._steps = repeat(None, operations)
        self._copied = 0

    def find_class(self, module: str, name: str) -> Any:
        """What stands for the global `module.name`."""
        raise NotImplementedError

    def persistent_load(self, pid: Any) -> Any:
        """What stands for an object that is kept elsewhere."""
        raise NotImplementedError

    def make(self, what: Any, arguments: tuple[Any, ...], *, new: bool) -> Any:
        """What calling a global gives; `new`: what its `__new__` gives."""
        raise NotImplementedError

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state."""
        raise NotImplementedError

    def extend(self, target: Any, items: list[Any]) -> None:
        """Append to what is no list."""
        raise NotImplementedError

    def set_items(self, target: Any, items: list[tuple[Any, Any]]) -> None:
        """Set items of what is no dict."""
        raise NotImplementedError

    def known(self, at: int) -> int:
        """Carry out at once what begins at `at`, if it is known as a whole; its end, or 0."""
        del at
        return 0

    def load(self) -> Any:
        """The object that was pickled.

        Raises:
            EOFError: it is cut.
            UnpicklingError, ValueError, TypeError, LookupError, ArithmeticError: it is damaged,
                or larger than is read.
        """
        try:
            return run(self, self._steps, _TABLE, _MARK)
        except IndexError:
            if self.at >= len(self.data):
                raise EOFError(f"the pickle has no end in {len(self.data):,} bytes") from None
            raise

    def spend(self, operations: int) -> None:
        """Count what takes time: an operation, or an element that is copied."""
        self._copied += operations
        if self._copied > length_hint(self._steps):
            raise UnpicklingError(f"more than {self.most:,} operations")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise EOFError(f"{size:,} bytes claimed, {len(self.data) - self.at:,} are left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, form: struct.Struct) -> Any:
        """The next number of this form."""
        return form.unpack(self.take(form.size))[0]

    def line(self) -> bytes:
        """The bytes up to the end of the line."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise EOFError("a line without an end")
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def put(self, index: int) -> None:
        """Remember what is on top of the stack."""
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        """Push what was remembered."""
        self.stack.append(self.memo[index])

    def to_mark(self) -> list[Any]:
        """Pop down to the last mark."""
        stack = self.stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise UnpicklingError("no mark")
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def pop(self, count: int) -> list[Any]:
        """Pop this many."""
        if not count:
            return []
        items = self.stack[-count:]
        if len(items) != count:
            raise UnpicklingError("the stack is empty")
        del self.stack[-count:]
        return items

    def tuple_of(self, items: list[Any]) -> tuple[Any, ...]:
        """A tuple whose hash takes bounded time and stack."""
        made = tuple(items)
        depth, size = 0, len(items)
        for item in items:
            if type(item) is tuple:
                inner = self.nested.get(id(item), (0, len(item)))
                depth = max(depth, inner[0] + 1)
                size += inner[1]
        if depth > _DEEPEST or (depth and size > _LARGEST):
            raise UnpicklingError("tuples in tuples, too many to be meant")
        if depth:
            self.nested[id(made)] = (depth, size)
        elif self.nested:
            self.nested.pop(id(made), None)  # of a tuple that was there before and is gone
        return made

    def key(self, value: Any) -> Any:
        """What takes the place of a key of a dict, or of an element of a set."""
        found, operations = plain_key(value)
        if operations:
            self.spend(operations)
        return found

    def pairs(self, items: list[Any]) -> list[tuple[Any, Any]]:
        """Keys and values that take turns."""
        if len(items) % 2:
            raise UnpicklingError("a key without a value")
        return [(self.key(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]

    def fill(self, items: list[Any]) -> None:
        """Keys and values into what is on top of the stack."""
        target = self.stack[-1]
        if type(target) is not dict:
            self.set_items(target, self.pairs(items))
            return
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values):
            raise UnpicklingError("a key without a value")
        if {*map(type, keys)} != {str} or max(map(len, keys)) > _SHORT_KEY:
            keys = [self.key(key) for key in keys]
        target.update(zip(keys, values, strict=True))

    def lengthen(self, items: list[Any]) -> None:
        """Elements into what is on top of the stack."""
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            target.update(self.key(item) for item in items)
        else:
            self.extend(target, items)

    def call(self, what: Any, arguments: Any, *, new: bool = False) -> None:
        """Push what a call gives."""
        if type(arguments) is not tuple:
            raise UnpicklingError("arguments that are no tuple")
        self.stack.append(self.make(what, arguments, new=new))


_Action = Callable[[PickleMachine], object]
_U1, _U2, _U4, _U8 = (struct.Struct(f"<{letter}") for letter in "BHIQ")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")


def _sized(form: struct.Struct, made: Callable[[bytes], Any]) -> _Action:
    return lambda m: m.stack.append(made(m.take(m.number(form))))


def _fixed(form: struct.Struct) -> _Action:
    return lambda m: m.stack.append(m.number(form))


def _constant(made: Callable[[], Any]) -> _Action:
    return lambda m: m.stack.append(made())


def _tuple(count: int) -> _Action:
    return lambda m: m.stack.append(m.tuple_of(m.pop(count)))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _old_text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")  # of Python 2: bytes, and text nearly always


def _signed(content: bytes) -> Any:
    if len(content) > _LONGEST_INT:
        return Inert("int")
    return int.from_bytes(content, "little", signed=True)


def _int(m: PickleMachine) -> None:
    content = m.line()
    m.stack.append(content == b"01" if content in (b"00", b"01") else int(content))


def _names(m: PickleMachine) -> Any:
    return m.find_class(_text(m.line()), _text(m.line()))


def _stack_names(m: PickleMachine) -> None:
    module, name = m.pop(2)
    if not (type(module) is type(name) is str):
        raise UnpicklingError("a name that is no text")
    m.stack.append(m.find_class(module, name))


def _object(m: PickleMachine) -> None:
    what, *arguments = m.to_mark()
    m.call(what, m.tuple_of(arguments))


def _new_with_names(m: PickleMachine) -> None:
    what, arguments, names = m.pop(3)
    if type(names) is not dict or type(arguments) is not tuple:
        raise UnpicklingError("arguments that are none")
    m.call(what, arguments, new=True)  # no stand-in takes any by name


def _duplicate(m: PickleMachine) -> None:
    m.stack.append(m.stack[-1])


def _drop(m: PickleMachine) -> None:
    m.stack.pop()


# those that `run` does not carry out itself
_ACTIONS: dict[bytes, _Action] = {
    b"0": _drop, b"1": lambda m: m.to_mark(),
    b"2": _duplicate, b"N": _constant(lambda: None), b"\x88": _constant(lambda: True),
    b"]": _constant(list), b"\x8f": _constant(set),
    b"I": _int, b"F": lambda m: m.stack.append(float(m.line())),
    b"L": lambda m: m.stack.append(int(m.line().rstrip(b"L"))),
    b"J": _fixed(_I4), b"G": _fixed(_F8),
    b"\x8a": _sized(_U1, _signed), b"\x8b": _sized(_I4, _signed),
    b"S": lambda m: m.stack.append(_old_text(m.line()[1:-1])),
    b"T": _sized(_I4, _old_text), b"U": _sized(_U1, _old_text),
    b"V": lambda m: m.stack.append(m.line().decode("raw-unicode-escape")),
    b"\x8d": _sized(_U8, _text),
    b"B": _sized(_U4, bytes), b"C": _sized(_U1, bytes), b"\x8e": _sized(_U8, bytes),
    b"\x96": _sized(_U8, bytearray),
    b"a": lambda m: m.lengthen(m.pop(1)), b"e": lambda m: m.lengthen(m.to_mark()),
    b"s": lambda m: m.fill(m.pop(2)),
    b"\x90": lambda m: m.lengthen(m.to_mark()),
    b"l": lambda m: m.stack.append(m.to_mark()),
    b"d": lambda m: m.stack.append(dict(m.pairs(m.to_mark()))),
    b"\x91": lambda m: m.stack.append(frozenset(m.key(item) for item in m.to_mark())),
    b"\x87": _tuple(3),
    b"p": lambda m: m.put(int(m.line())),
    b"g": lambda m: m.get(int(m.line())), b"j": lambda m: m.get(m.number(_U4)),
    b"c": lambda m: m.stack.append(_names(m)), b"\x93": _stack_names,
    b"\x81": lambda m: m.call(*m.pop(2), new=True),
    b"\x92": _new_with_names, b"o": _object,
    b"i": lambda m: m.call(_names(m), m.tuple_of(m.to_mark())),
    b"P": lambda m: m.stack.append(m.persistent_load(_text(m.line()))),
    b"\x80": lambda m: m.take(1), b"\x95": lambda m: m.take(8),
    # a registered extension could be anything, and a buffer is outside of the file
}  # fmt: skip
_TABLE = [_ACTIONS.get(bytes([code])) for code in range(256)]
