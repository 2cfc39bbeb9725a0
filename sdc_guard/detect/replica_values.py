"""Two replicas' values: corruption, or rounding that was done in another order.

    d = |a − b| / max(|a|, |b|)         of one element
    s = |a − b| / max(|a|, |b|, rms)    the same, where zero is not far from anything small

A flip of a sign or of an exponent bit changes a value by a factor of two at least, so d ≥ 1/2, by
the format of IEEE 754. Sums in another order differ by some of the last bits: with n terms by
√n·ε as a rule (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), which
is 10⁻³ for ε = 2⁻²³ and n = 7·10⁷, more than any layer sums; an optimizer's update that is not
synchronised is bounded by its learning rate. Where ε is larger than that, as in bfloat16, it is
four units in the last place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Sort = Literal["corruption", "drift", "unclassified"]

LARGE: Final = 0.5
TINY: Final = 1e-3
_LOWEST: Final = 3  # bits below are what rounding changes too
# dtype: words, bits of the stored fraction
_FORMATS: Final[dict[str, tuple[Any, int]]] = {
    "float64": (np.uint64, 52),
    "float32": (np.uint32, 23),
    "float16": (np.uint16, 10),
    "bfloat16": (np.uint16, 7),
}


@dataclass(frozen=True)
class Compared:
    """What the values say.

    Attributes:
        sort: "unclassified" where they say neither.
        differing: how many elements differ.
        of: elements that were compared.
        largest: the largest d; infinite where one side is no finite number.
        index: of the element with it, among those compared.
        one, other: its bits on either side.
    """

    sort: Sort
    differing: int
    of: int
    largest: float
    index: int
    one: int
    other: int

    @property
    def bits(self) -> list[int]:
        """Positions of the bits in which that element differs, 0 the lowest."""
        return [bit for bit in range(64) if (self.one ^ self.other) >> bit & 1]


def words_of(raw: bytes, dtype: str) -> NDArray[Any] | None:
    """The words of a tensor's bytes; None for a dtype that is not known here."""
    known = _FORMATS.get(dtype)
    return None if known is None else np.frombuffer(raw, known[0])


def compare(one: NDArray[Any], other: NDArray[Any], dtype: str) -> Compared | None:
    """Compare the values of one tensor on two ranks.

    Args:
        one, other: words, as of `words_of`, of the same elements.
        dtype: of the tensor.

    Returns:
        None if no element differs, or the sizes do.
    """
    if len(one) != len(other):
        return None
    places = np.flatnonzero(one != other)
    if not len(places):
        return None
    fraction = _FORMATS[dtype][1]
    all_values, a, b = (_values(w, dtype) for w in (one, one[places], other[places]))
    with np.errstate(all="ignore"):
        size, far = np.maximum(abs(a), abs(b)), abs(a - b)
        finite = np.isfinite(a) & np.isfinite(b)
        same = finite & (far == 0)  # the two zeros
        relative = np.where(same, 0.0, np.where(finite, far / size, np.inf))
        rms = float(np.sqrt(np.mean(np.square(all_values[np.isfinite(all_values)]))))
        scaled = np.where(finite & ~same, far / np.maximum(size, rms), relative)
    worst = int(np.argmax(relative))
    place = int(places[worst])
    bits = int(one[place]), int(other[place])
    tiny = max(TINY, 4 * 2.0**-fraction)
    sort = _sort(relative, scaled, len(places), len(one), bits, tiny)
    return Compared(sort, len(places), len(one), float(relative[worst]), place, *bits)


def _sort(
    relative: NDArray[Any],
    scaled: NDArray[Any],
    count: int,
    of: int,
    bits: tuple[int, int],
    tiny: float,
) -> Sort:
    flipped = bits[0] ^ bits[1]
    if count == 1 and not flipped & (flipped - 1) and flipped >> _LOWEST:
        return "corruption"  # one bit of one element, and not the last ones
    if (scaled <= tiny).all():
        # a single element is too little to call it the work of rounding
        return "drift" if count > 1 else "unclassified"
    if 2 * count > of:
        return "unclassified"  # trained apart, or damaged all over
    if ((relative >= LARGE) & (scaled > tiny)).any():
        return "corruption"
    return "unclassified"


def _values(words: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return words.view(dtype).astype(np.float64)
