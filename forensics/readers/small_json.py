"""The JSON documents that lie beside tensors, and what is wrong with them in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sdc_guard.archive.foreign_file import ENOUGH, lfs_pointer
from sdc_guard.archive.regular_file import read_regular

from .listing import is_file

_LARGEST: Final = 1 << 29  # bytes of a document that is read as a whole


class DamagedJson(ValueError):
    """What is wrong with a document, in words."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        DamagedJson: it is not there, a Git LFS pointer, cut short, or something else.
    """
    text = _text(path)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise DamagedJson(f"JSON cut short after {len(text):,} characters") from None
        raise DamagedJson(f"damaged JSON: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise DamagedJson(f"damaged JSON: {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise DamagedJson("JSON that is no object")
    return document


def _text(path: Path) -> str:
    try:
        if not is_file(path):
            raise DamagedJson("not a file" if path.exists() else "missing")
        size = path.stat().st_size
        if size > _LARGEST:
            raise DamagedJson(f"too large ({size:,} bytes)")
        content = read_regular(path)
    except OSError as error:
        raise DamagedJson(f"cannot be read: {error.strerror or error}") from None
    if not content.strip():
        raise DamagedJson(f"empty ({len(content):,} bytes)")
    if pointer := lfs_pointer(content[:ENOUGH]):
        raise DamagedJson(pointer)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedJson(f"damaged JSON: no text at byte {error.start:,}") from None
