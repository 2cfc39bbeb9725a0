"""Answers to the probe's fixed question: what can be said of one, and of two that differ."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Relative differences of losses and norms of gradients. Rounding to float32 is up to 2⁻²⁴ = 6e-8
# an operation, and sums of n terms in another order differ by about √n of it: 1e-7 to 1e-5 for
# the lengths of a model (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., ch. 4).
# TF32 rounds the factors to 11 significant bits, up to 2⁻¹¹ = 5e-4 each, and bfloat16 to 8, up to
# 2⁻⁸ = 4e-3, and what they do to a mean of many is somewhat less.
ORDER_LIMIT: Final = 3e-5
PRECISION_LIMIT: Final = 1e-2


@dataclass(frozen=True)
class Known:
    """What is known of an answer beforehand, by integer arithmetic.

    Attributes:
        question: H of the numbers that the question is made of.
        products: H of each product of integers.
    """

    question: int
    products: tuple[int, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of an answer's digests, in their order."""
        products = (f"product of integers {n}" for n in range(1, len(self.products) + 1))
        return ("question", *products, "output 1", "output 2", "gradients")


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer; two are compared by their hashes.

    Attributes:
        rows: int64, shape (parts, 3): digests, in the order of `Known.parts`.
        numbers: float64, shape (numbers,): two losses, then norms of gradients.
    """

    rows: NDArray[np.int64]
    numbers: NDArray[np.float64]

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of all digests: equal exactly where every bit is."""
        return hashlib.blake2b(self.rows.tobytes(), digest_size=8).hexdigest()

    @property
    def is_constant(self) -> bool:
        """Whether two different inputs gave the same output, bit for bit: zeros, say."""
        return bool((self.rows[-3] == self.rows[-2]).all())

    def wrong(self, known: Known) -> tuple[str, ...]:
        """Parts that are not what integer arithmetic gives: wrong by themselves."""
        expected = (known.question, *known.products)
        found = self.rows[: len(expected), 0].astype(np.uint64).tolist()
        named = zip(known.parts, expected, found, strict=False)
        return tuple(name for name, right, is_now in named if right != is_now)


def differing(one: Answer, other: Answer, known: Known) -> tuple[str, ...]:
    """Names of the parts in which two answers differ."""
    apart = (one.rows != other.rows).any(axis=1).tolist()
    return tuple(name for name, differs in zip(known.parts, apart, strict=True) if differs)


def relative_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The largest |a − b| / max(|a|, |b|) of two answers' numbers, 0 to 2.

    Infinite where only one of a pair is finite, or neither and they are not alike.
    """
    alike = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = np.maximum(np.abs(one), np.abs(other))
        # halves: the difference of two large numbers may overflow
        apart = 2 * np.abs(one / 2 - other / 2) / largest
    apart = np.where(alike, 0.0, np.where(np.isfinite(one) & np.isfinite(other), apart, np.inf))
    return float(apart.max(initial=0.0))


def size_in_words(relative: float) -> str:
    """What a difference of this size may come from; of the size alone nothing is proven."""
    if relative == 0:
        return "losses and norms are equal, and other bits differ"
    size = f"losses or norms differ by {relative:.1e} of themselves"
    if relative <= ORDER_LIMIT:
        return f"{size}, as another machine, build or order of summation may cause"
    if relative <= PRECISION_LIMIT:
        return f"{size}, as a lower precision of products may cause, such as TF32"
    return f"{size}, more than rounding and precision explain"


def as_detail(answer: Answer) -> dict[str, Any]:
    """An answer in JSON values, exact: floats in hexadecimal."""
    return {"hash": answer.hash, "numbers": [value.hex() for value in answer.numbers.tolist()]}
