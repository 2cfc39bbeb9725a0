"""Numbers with units, from text and to text. 1 GB is 10⁹ bytes, 1 GiB is 2³⁰."""

from __future__ import annotations

import math
import re
from typing import Final

from ...errors import UsageError

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
MONTH: Final = 365.25 / 12 * DAY  # a mean one of the Julian calendar
GB: Final = 1e9

TIMES: Final = {
    "ms": 1e-3, "s": 1.0, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY, "y": 365.25 * DAY,
}  # fmt: skip
SIZES: Final = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50,
}  # fmt: skip
_BITS: Final = {"Mbit": 1e6 / 8, "Gbit": 1e9 / 8, "Tbit": 1e12 / 8}
RATES: Final = {f"{unit}/s": value for unit, value in (SIZES | _BITS).items()}
NONE: Final = {"": 1.0}

_FORM: Final = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?))\s*(.*)", re.IGNORECASE
)
_UNCLEAR: Final = {
    "m": "min are minutes, ms milliseconds",
    "Gb": "GB are bytes, Gbit bits",
    "Gb/s": "GB/s are bytes, Gbit/s bits",
    "Gbps": "Gbit/s are bits, GB/s bytes",
}


def number(text: str, units: dict[str, float], where: str, least: float, most: float) -> float:
    """A number with its unit, in the unit whose factor is 1.

    Args:
        text: such as "420GB", "1.5 h"; of `NONE` no unit may be there, else one must be.
        units: unit to factor.
        where: the option that it was given by, for the error.
        least, most: what is accepted, both included.

    Raises:
        UsageError: no number, no unit or another one, not finite, or out of the bounds.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"no number: {text!r}", where=where, next_step=_example(units))
    value, unit = float(found[1]), found[2].strip()
    if not math.isfinite(value):
        raise UsageError(f"not a finite number: {text!r}", where=where)
    if unit not in units:
        what = f"unit {unit!r} is not understood" if unit else f"{text!r} has no unit"
        raise UsageError(what, where=where, next_step=_UNCLEAR.get(unit, _example(units)))
    value *= units[unit]
    if not least <= value <= most:
        bounds = f"from {_bound(least, units)} to {_bound(most, units)}"
        raise UsageError(f"{text!r} cannot be", where=where, next_step=f"{bounds} is accepted")
    return value


def _example(units: dict[str, float]) -> str:
    if units is TIMES:
        return "such as 90s, 6min, 1.5h or 30d"
    if units is SIZES:
        return "such as 420GB or 391GiB"
    return "such as 10GB/s or 80Gbit/s" if units is RATES else "a number without a unit"


def _bound(value: float, units: dict[str, float]) -> str:
    if units is TIMES:
        return time_text(value)
    return bytes_text(value, "/s" * (units is RATES)) if units is not NONE else f"{value:g}"


def bytes_text(size: float, per: str = "") -> str:
    """Bytes in decimal units, three digits: "420 GB"; with `per` "/s" a rate."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * factor:
            return f"{_digits(size / factor)} {unit}{per}"
    return f"{_digits(size)} B{per}"


def time_text(seconds: float) -> str:
    """Seconds in the unit that fits, three digits: "42 s", "6 min", "3.3 d"."""
    # two of a unit, so that 84 s stay seconds; but one hour is not 60 min
    for unit, factor in (("y", 365.25 * DAY), ("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= (1.0 if unit == "h" else 2.0) * factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds)} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1e3:.3g} ms"


def hours_text(seconds: float) -> str:
    """Seconds in hours, as a mean time between failures is told: "1,000 h"."""
    return f"{_digits(seconds / HOUR)} h"


def money_text(dollars: float) -> str:
    """Dollars: cents below a hundred, thousands apart above it."""
    return f"${dollars:,.2f}" if dollars < 99.995 else f"${dollars:,.0f}"


def share_text(share: float) -> str:
    """A share in per cent, three digits."""
    return f"{_digits(100 * share)} %"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
