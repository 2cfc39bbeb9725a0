"""Faults in a matrix of words: which words they change, and to what.

Every fault is applied to a copy, and one that changes no bit (a swap of equal elements, a bit that
stuck where it was) is no fault: it comes back as None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Draw:
    """The numbered draw of a fault: where it begins, and which bit.

    Attributes:
        number: of the draw; bits and first elements go round with it, so that all come up.
        many: elements, pairs or rows that the fault hits.
    """

    number: int
    many: int

    def bit(self, words: Words) -> int:
        """Each bit of a word in its turn."""
        return self.number % (8 * words.itemsize)

    def places(self, words: Words, rng: np.random.Generator) -> NDArray[np.int64]:
        """Distinct elements: in every second draw at equal distances, as a device's lanes lie."""
        first = self.number * 2654435761 % words.size  # all over the matrix, in no pattern
        if self.number // (8 * words.itemsize) % 2:
            step = 2 ** int(rng.integers(0, np.log2(words.size // self.many) + 1))
            return (first + step * np.arange(self.many)) % words.size
        others = rng.choice(words.size - 1, self.many - 1, replace=False)
        return np.append(first, np.where(others >= first, others + 1, others))


def same_bit(words: Words, draw: Draw, rng: np.random.Generator) -> None:
    """One bit position flips in several elements."""
    words.reshape(-1)[draw.places(words, rng)] ^= words.dtype.type(1 << draw.bit(words))


def signs(words: Words, draw: Draw, rng: np.random.Generator) -> None:
    """The highest bit flips in several elements."""
    highest = words.dtype.type(1 << (8 * words.itemsize - 1))
    words.reshape(-1)[draw.places(words, rng)] ^= highest


def stuck(words: Words, draw: Draw, rng: np.random.Generator) -> None:
    """One bit position of several elements reads 1, or 0, whatever it was."""
    flat, places = words.reshape(-1), draw.places(words, rng)
    one = words.dtype.type(1 << draw.bit(words))
    if rng.integers(2):
        flat[places] |= one
    else:
        flat[places] &= ~one


def swaps(words: Words, draw: Draw, rng: np.random.Generator) -> None:
    """Several pairs of elements change places."""
    flat = words.reshape(-1)
    pairs = rng.choice(words.size, (2, draw.many), replace=False)
    flat[pairs[0]], flat[pairs[1]] = flat[pairs[1]], flat[pairs[0]]


def row_swaps(words: Words, draw: Draw, rng: np.random.Generator) -> None:
    """Several pairs of rows change places."""
    pairs = rng.choice(len(words), (2, draw.many), replace=False)
    words[pairs[0]], words[pairs[1]] = words[pairs[1]], words[pairs[0]]


Fault = Callable[[Words, Draw, np.random.Generator], None]
KINDS: dict[str, tuple[Fault, tuple[int, ...]]] = {
    "same bit": (same_bit, (1, 2, 8, 32)),
    "sign": (signs, (2, 8, 32)),
    "stuck bit": (stuck, (1, 2, 8, 32)),
    "swapped pairs": (swaps, (1, 2, 8, 32)),
    "swapped rows": (row_swaps, (1, 2, 8, 32)),
}


def damaged(sound: Words, fault: Fault, draw: Draw, rng: np.random.Generator) -> Words | None:
    """A copy of the words with a fault; None if no bit is another."""
    words = sound.copy()
    fault(words, draw, rng)
    return None if np.array_equal(words, sound) else words
