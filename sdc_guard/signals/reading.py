"""Reading settings of which any may be missing in a release, or refuse to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Part = Callable[[], Any]

NOT_KNOWN: Final = "not known: "  # before the reason, in place of a value


def read(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The value of each part by its name; the text of why not where it raises."""
    return {name: _value(part) for name, part in parts.items()}


def _value(part: Part) -> Any:
    try:
        return part()
    except Exception as error:  # noqa: BLE001 - because a setting may refuse in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{NOT_KNOWN}{reason[:160]}"
