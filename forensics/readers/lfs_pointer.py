"""Files that Git LFS left in place of their content."""

from __future__ import annotations

import re

_POINTER = re.compile(rb"version https://git-lfs[^\n]*\n.*?size (\d{1,20})", re.DOTALL)
LONGEST = 1024  # bytes: a pointer is smaller, by its specification


def lfs_pointer(start: bytes) -> str:
    """What to tell of a file whose first bytes are those of a Git LFS pointer; "" if not."""
    found = _POINTER.match(start[:LONGEST])
    if not found:
        return ""
    return f"a Git LFS pointer; its content ({int(found[1]):,} bytes) was not downloaded"
