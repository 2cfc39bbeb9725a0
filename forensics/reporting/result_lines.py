"""A search's or a verification's result as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from sdc_guard.shown import shown

from ..wording import machine_in_words, sentence

TENSOR_HEADS = ("kind", "tensor", "element", "bits", "before", "after", "was", "became")
_KEYS = ("kind", "name", "index", "bits", "before", "after", "before_value", "after_value")


def utc(moment: float) -> str:
    """A moment (seconds since the epoch) in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):  # what a damaged file says
        return f"{moment!r} s"


def lines(result: dict[str, Any], text: Callable[[str], str] = shown) -> list[str]:
    """A result as lines of text that are Markdown, too.

    Args:
        result: as it is stored.
        text: what is done to each text of it, to make it harmless where it is shown.
    """
    told = [text(sentence(result)), *(f"- {text(str(line))}" for line in result["evidence"])]
    if where := machine_in_words(result.get("machine")):
        told.append(f"- {text(where)}")
    if result["tensors"] and result.get("class") == "batch":
        count = len(result["tensors"]) + int(result.get("more_tensors") or 0)
        told += [f"- what the step left differs with its batch: {count} tensor{'s' * (count != 1)}"]
    elif result["tensors"]:
        rows = [tensor_cells(tensor) for tensor in result["tensors"]]
        told += ["", *table(TENSOR_HEADS, rows, text).split("\n")]
        if more := result.get("more_tensors"):
            told += ["", f"and {more} more tensors of the same step"]
    return told


def tensor_cells(tensor: dict[str, Any]) -> list[Any]:
    """What is told of a tensor, in the order of TENSOR_HEADS."""
    return [tensor.get(key) for key in _KEYS]


def table(
    heads: Iterable[str], rows: Iterable[Iterable[Any]], text: Callable[[str], str] = str
) -> str:
    """A table in Markdown; None is an empty cell."""
    heads = tuple(heads)
    found = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        cells = ["" if cell is None else _cell(cell, text) for cell in row]
        found.append("| " + " | ".join(cells) + " |")
    return "\n".join(found)


def _cell(cell: Any, text: Callable[[str], str]) -> str:
    told = text(cell) if isinstance(cell, str) else str(cell)
    return told.replace("|", "\\|")
