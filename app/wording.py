"""Numbers, units and text from a run, as the pages print them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .records import Checkpoint

_STATUSES = {"clean": "●", "suspect": "▲", "corrupt": "✖", "untested": "■"}
_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")


def plain(text: object) -> str:
    """Text that Markdown shows as it is.

    Names and messages come from the run's files: an image's address among them would make the
    browser fetch it. What no encoding knows, as in names that are no UTF-8, is told as its escape.
    """
    encoded = " ".join(str(text).split()).encode(errors="backslashreplace")
    return _MARKDOWN.sub(r"\\\1", encoded.decode())


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def span_text(first: int | None, last: int | None) -> str:
    """`1 to 60`, or `none`."""
    if first is None or last is None:
        return "none"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def bracket_text(last_clean: int | None, first_bad: int) -> str:
    """A half-open interval of steps: `(20, 40]`, or `(start, 40]`."""
    return f"({'start' if last_clean is None else f'{last_clean:,}'}, {first_bad:,}]"


def size_text(size: int | None) -> str:
    """A size in bytes, with a decimal unit."""
    if size is None:
        return "–"
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def age_text(seconds: float) -> str:
    """A duration: `3 s`, `5 min`, `2 h`, `3 d`."""
    seconds = max(seconds, 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def utc_text(moment: float) -> str:
    """A moment (seconds since the epoch) in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def number_text(value: float | None) -> str:
    """A number in six significant digits, or `–` when there is none."""
    return "–" if value is None else f"{value:.6g}"


def score_text(severity: str, score: float, threshold: float) -> str:
    """An alert's score and its limit; a comparison of bits has neither."""
    return (
        "exact"
        if severity == "proven"
        else f"{number_text(score)} (limit {number_text(threshold)})"
    )


def bits_text(bits: Any) -> str:
    """Bit positions: `19` or `3, 19`; empty when unknown."""
    if isinstance(bits, Sequence) and not isinstance(bits, str):
        return ", ".join(str(bit) for bit in bits)
    return "" if bits is None else str(bits)


def place_text(detail: Mapping[str, Any]) -> str:
    """Where in a layer an alert is: `param, element 77, bit 22`; empty where it names nothing."""
    bits = bits_text(detail.get("bits"))
    parts = [str(detail.get("kind") or "")]
    parts.append("" if detail.get("index") is None else f"element {detail['index']}")
    parts.append(f"{'bits' if ',' in bits else 'bit'} {bits}" if bits else "")
    return ", ".join(part for part in parts if part)


def status_text(checkpoint: Checkpoint) -> str:
    """A checkpoint's status with its symbol; of a deleted one what it was stays worth knowing."""
    if checkpoint.deleted:
        return f"– deleted (was {checkpoint.status})"
    return f"{_STATUSES[checkpoint.status]} {checkpoint.status}"
