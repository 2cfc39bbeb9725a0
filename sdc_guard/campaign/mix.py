"""Which faults are drawn: two mixes, reported apart.

"uniform": one bit of one element, each bit as likely. What most studies inject, and simple to
reason about; single bits understate the harm of real faults about ninefold against beam tests.

"realistic": what gate-level studies of stuck-at faults and reports of fleets agree on. About half
of the outcomes are values turned to zero; about half are changed bits, of which fewer than 40 % a
single one; addresses are aligned to warps and periodic in the lane (32); NaN or Inf are 1 %. The
finer shares below are our choice within these.

A file has faults of its own: bytes, and blocks that read as zeros. Nothing above is about files,
so these shares are ours altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..errors import UsageError
from ..inject.fault import Draw, Fault, Site

MIXES: Final = ("uniform", "realistic")
LANES: Final = 32

# per thousand: zeros 490, flips 300 (single bits 120), stuck bits 120, powers of two 80, not finite
# 10; so single bits are 24 % of what is not zeroed
REALISTIC: Final[dict[str, int]] = {
    "zero lane": 200,
    "zero row": 120,
    "zero tile": 120,
    "zero element": 50,
    "flip bit": 120,
    "flip bits": 90,
    "flip lane": 90,
    "stuck lane": 120,
    "scale row": 40,
    "scale tile": 40,
    "not finite": 10,
}

FILE_REALISTIC: Final[dict[str, int]] = {
    "flip bit": 200,
    "flip bits": 200,
    "zero sector": 300,  # 512 bytes
    "zero page": 300,  # 4096 bytes
}

_OF_FLOATS: Final = ("scale row", "scale tile", "not finite")
_FEWEST_BITS, _MOST_BITS = 2, 4
_LARGEST_EXPONENT = 8


@dataclass(frozen=True)
class Kind:
    """A fault whose tensor and element are left to the injector, and what to call it."""

    name: str
    fault: Fault


def draw_fault(
    mix: str, site: Site, step: int, draw: Draw, *, width: int, whole: bool = False
) -> Kind:
    """A fault of a mix.

    Args:
        mix: of MIXES.
        site: where; step: when.
        draw: decides everything that is random here.
        width: bits in a word there; 8 of a file.
        whole: whether the words are whole numbers, which nothing scales or makes infinite.

    Raises:
        UsageError: no such mix.
    """
    if mix == "uniform":
        bit = draw.below(width, "bit")
        return Kind("flip bit", Fault(site, step, bits=(bit,)))
    if mix != "realistic":
        raise UsageError(f"no mix {mix!r}", next_step=f"one of {', '.join(MIXES)}")
    shares = FILE_REALISTIC if site == "file" else REALISTIC
    if whole:
        shares = {name: share for name, share in shares.items() if name not in _OF_FLOATS}
    name = list(shares)[draw.by_size(list(shares.values()), "kind")]
    return Kind(name, Fault(site, step, **_fields(name, width, draw)))


def _fields(name: str, width: int, draw: Draw) -> dict[str, Any]:
    what, _, shape = name.partition(" ")
    fields = _pattern(shape, draw)
    if what == "zero":
        return fields | {"change": "zero"}
    if what == "flip":
        return fields | {"bits": _bits(1 if shape == "bit" else None, width, draw)}
    if what == "stuck":
        change = ("stuck_at_0", "stuck_at_1")[draw.below(2, "level")]
        return (
            fields
            | {"bits": _bits(1 + draw.below(3, "stuck bits"), width, draw)}
            | {"change": change}
        )
    if what == "scale":
        size = 1 + draw.below(_LARGEST_EXPONENT, "exponent")
        return fields | {"change": "scale", "exponent": size * (1 - 2 * draw.below(2, "sign"))}
    value = (float("nan"), float("inf"), float("-inf"))[draw.below(3, "value")]
    return {"change": "set", "value": value}


def _pattern(shape: str, draw: Draw) -> dict[str, Any]:
    if shape == "lane":
        return {"pattern": "lane", "period": LANES}
    if shape == "tile":
        side = (8, 16)[draw.below(2, "side")]  # of the tiles of matrix units
        return {"pattern": "tile", "height": side, "width": side}
    if shape in ("sector", "page"):
        return {"pattern": "tile", "width": 512 if shape == "sector" else 4096}
    return {"pattern": "row"} if shape == "row" else {}


def _bits(count: int | None, width: int, draw: Draw) -> tuple[int, ...]:
    """So many different bits of a word; None for 2 to 4."""
    if count is None:
        count = _FEWEST_BITS + draw.below(_MOST_BITS - _FEWEST_BITS + 1, "how many")
    left, chosen = list(range(width)), []
    for number in range(min(count, width)):
        chosen.append(left.pop(draw.below(len(left), f"bit {number}")))
    return tuple(sorted(chosen))
