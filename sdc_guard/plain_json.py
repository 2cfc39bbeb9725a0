"""Values as strict JSON knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The same value made of what JSON has.

    NaN and the infinities become the strings "NaN", "Infinity" and "-Infinity", so that they stay
    apart from null; bytes become hexadecimal digits; what else is unknown (dates, decimals)
    becomes its text. Integers stay whole, also those beyond 2**53.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)
