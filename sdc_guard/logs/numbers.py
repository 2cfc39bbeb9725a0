"""What a cell of somebody's log says, as a number."""

from __future__ import annotations

import re
from typing import Final

_MISSING: Final = frozenset({"", "none", "null", "na", "n/a", "-", "--"})
GROUPED: Final = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")  # 1,234 and 1,234,567.8
_TENSOR: Final = re.compile(r"tensor\(\s*\[?\s*([-+.\w]+?)\.?\s*\]?\s*(?:,.*)?\)", re.DOTALL)


def number(cell: object, *, decimal_comma: bool = False) -> float | None:
    """The number in a cell, NaN and infinities included; None where nothing was logged.

    A tensor's text, as some logs have it, and a list of one number count as the number.

    Args:
        cell: as the file has it.
        decimal_comma: whether a single comma begins the fraction, as in 2,31; commas otherwise
            part groups of three digits, as in 1,234, and stand nowhere else.

    Raises:
        ValueError: something else is there.
    """
    if cell is None:
        return None
    if isinstance(cell, str):
        return _of_text(cell.strip(), decimal_comma)
    if isinstance(cell, list) and len(cell) == 1:
        return number(cell[0], decimal_comma=decimal_comma)
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        raise ValueError(cell)
    try:
        return float(cell)
    except OverflowError:
        raise ValueError(cell) from None


def _of_text(text: str, decimal_comma: bool) -> float | None:
    if text.lower() in _MISSING:
        return None
    if "_" in text:  # Python's own digits, 1_000, are no log's
        raise ValueError(text)
    try:
        return float(text)
    except ValueError:
        inner = _TENSOR.fullmatch(text)
        if inner:
            return float(inner[1])
        if decimal_comma and text.count(",") == 1 and "." not in text:
            return float(text.replace(",", "."))
        if GROUPED.fullmatch(text):
            return float(text.replace(",", ""))
        raise
