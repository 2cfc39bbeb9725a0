"""What is sent to and fro: patterns of bits, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..digest import digest_tensor

KB, MB = 1 << 10, 1 << 20
_LARGE: Final = 64 * MB
_OF_LARGE: Final = ("ones", "alternating", "random")
SIZES: Final = (4 * KB, 1 * MB, 16 * MB, 256 * MB)
Words = NDArray[np.uint32]


def _filled(word: int) -> Callable[[int, int], Words]:
    return lambda count, _: np.full(count, word, dtype=np.uint32)


def _random(count: int, seed: int) -> Words:
    words = np.random.default_rng(seed).integers(0, 2**64, -(-count // 2), dtype=np.uint64)
    return words.view(np.uint32)[:count]


def _counting(count: int, seed: int) -> Words:
    """Every place has another word: what lands in a wrong place is seen."""
    return np.arange(seed, seed + count, dtype=np.uint64).astype(np.uint32)


PATTERNS: Final[dict[str, Callable[[int, int], Words]]] = {
    "zeros": _filled(0),
    "ones": _filled(0xFFFFFFFF),  # a NaN, too
    "alternating": _filled(0xAAAAAAAA),
    "alternating back": _filled(0x55555555),
    "counting": _counting,
    "random": _random,
}


def patterns_for(size: int) -> tuple[str, ...]:
    """All of them for small sizes, and those that find most for large ones."""
    return tuple(PATTERNS) if size < _LARGE else _OF_LARGE


def sent(pattern: str, size: int, seed: int = 0) -> torch.Tensor:
    """A tensor of this pattern in host memory, float32, `size` bytes."""
    return torch.from_numpy(PATTERNS[pattern](size // 4, seed).view(np.float32))


@dataclass
class Damage:
    """What went wrong on one way.

    Attributes:
        words: 32-bit words that arrived otherwise, in all tries.
        nan: of these, those that arrived as NaN and were sent as another value.
        zeros: of these, those that arrived as zero.
        tries: how many went wrong, by "pattern, size".
    """

    words: int = 0
    nan: int = 0
    zeros: int = 0
    tries: dict[str, int] | None = None

    def __bool__(self) -> bool:
        return self.words > 0

    def note(self, what: str, expected: torch.Tensor, arrived: torch.Tensor) -> None:
        """Compare by digest, and count the words where it differs; both in host memory."""
        same_shape = arrived.shape == expected.shape and arrived.dtype == expected.dtype
        if same_shape and digest_tensor(arrived) == digest_tensor(expected):
            return
        self.tries = self.tries or {}
        if not same_shape:
            wrong = expected.numel()
            self.words += wrong
        else:
            apart = arrived.view(torch.int32) != expected.view(torch.int32)
            wrong = int(apart.sum())
            self.words += wrong
            self.nan += int((apart & arrived.isnan() & ~expected.isnan()).sum())
            self.zeros += int((apart & (arrived.view(torch.int32) == 0)).sum())
        self.tries[what] = self.tries.get(what, 0) + wrong

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "words": self.words, "nan": self.nan, "zeros": self.zeros, "tries": self.tries or {},
        }  # fmt: skip


def named(pattern: str, size: int) -> str:
    """A try in words."""
    return f"{pattern}, {in_words(size)}"


def in_words(size: int) -> str:
    """Bytes in words."""
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB"
