"""The details of alerts, events and incidents, as they are stored: JSON objects, or anything."""

from __future__ import annotations

import json
from typing import Any


def detail_of(text: str | None) -> dict[str, Any]:
    """The object that a text holds; an empty one where it holds none."""
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
