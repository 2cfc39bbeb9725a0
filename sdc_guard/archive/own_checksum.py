"""The checksum that a JSON file keeps of itself: what says what is right may be damaged, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash


def checksum_without(content: Mapping[str, Any], key: str) -> str:
    """xxh3-128, in hexadecimal, of an object's canonical JSON without the checksum itself.

    Of what it says, that is: other blanks or another order of its entries change nothing.

    Args:
        content: JSON values, with texts as keys.
        key: of the checksum.
    """
    rest = {name: value for name, value in content.items() if name != key}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128(text.encode()).hexdigest()
