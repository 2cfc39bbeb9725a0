"""Keys of what a pickle describes: such as are hashed and written out in bounded time.

A file may use anything that can be hashed as a key, and use it often. What is no plain short value
is replaced by a stand-in that is hashed by its identity, whatever it stands for.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import Any, Final

_PLAIN: Final = frozenset((str, bytes, int, float, bool, type(None)))
_MODULUS: Final = 2**61 - 1  # of Python's hash of integers: beyond it many can share one
_SHORT: Final = 100  # characters or bytes: comparing these takes no time to speak of
_MOST_PARTS: Final = 32  # of a tuple that is written out
_LONGEST_TEXT: Final = 1_000  # characters of a tuple that is written out


class OddKey:
    """Stands for a key that is no plain value; its text is what the key would be called."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def plain_key(value: Any) -> tuple[Any, int]:
    """What takes the place of a key, and how many operations it counts as.

    Raises:
        UnpicklingError: it can be no key.
    """
    kind = type(value)
    if kind is str:
        return value, 0 if len(value) <= _SHORT else len(value)
    if kind is bytes:
        return (value if len(value) <= _SHORT else OddKey("bytes")), 1
    if kind in _PLAIN:
        fits = kind is not int or -_MODULUS < value < _MODULUS
        return (value if fits else OddKey(_text(value) or "int")), 1
    hashing: Any = kind.__hash__
    if hashing is object.__hash__:  # a placeholder, a class: by identity
        return value, 1
    if hashing is None:
        raise UnpicklingError("a key that can change")
    text = _text(value)
    return OddKey(kind.__name__ if text is None else text), 1 + len(text or "")


def _text(value: Any) -> str | None:
    """A key as Python writes it out, if that is short."""
    left = _LONGEST_TEXT
    parts = 0
    pending = [value]
    while pending:
        part = pending.pop()
        kind = type(part)
        parts += 1
        if kind is tuple:
            left -= 2
            if parts + len(part) > _MOST_PARTS:
                return None
            pending.extend(part)
        elif kind is str or kind is bytes:
            left -= len(part)
        elif kind is int:
            left -= part.bit_length() // 3
        elif kind is not complex and kind not in _PLAIN:
            return None
        if left < 0:
            return None
    return repr(value)
