"""A line of the ledger, of which anything may be wrong: torn, edited by hand, not ours at all."""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from .detect.strikes import Entry

KINDS: Final = ("strike", "audits", "note", "cleared")
_LONGEST: Final = 1 << 20  # bytes of a line; a writer's has some hundreds
_WRITING: Final = 0.05  # seconds for a writer to end its line
_NAME: Final = 1000  # letters of a device or a host; a host's name has at most 253
_LATEST: Final = 253402300800.0  # the year 10000, in seconds since 1970
_MOST: Final = 10**12  # audits of one line; sums of them are far from where a float ends


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not blank, each cut after what a line may have at most."""
    while line := file.readline(_LONGEST + 1):
        if len(line) <= _LONGEST and not line.endswith(b"\n"):
            time.sleep(_WRITING)  # it is being written, or its writer was killed
            line += file.readline(_LONGEST + 1 - len(line))
        rest = line
        while len(rest) > _LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(_LONGEST + 1)  # and forgotten, so that memory does not grow
        if not line.isspace():
            yield line


def entry_of(line: bytes) -> Entry | None:
    """What a line says; None where it is damaged, in whatever way."""
    if len(line) > _LONGEST:
        return None
    try:
        content = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError):  # brackets in brackets without an end
        return None
    return _checked(content) if isinstance(content, dict) else None


def _checked(content: Any) -> Entry | None:
    kind, device, when = content.get("kind"), content.get("device"), content.get("time")
    host, verdict = content.get("host", ""), content.get("verdict", "")
    count, run = content.get("count", 0), content.get("run", "")
    good = (
        isinstance(kind, str)
        and kind in KINDS
        and isinstance(device, str)
        and 0 < len(device) <= _NAME
        and type(when) in (int, float)  # true and false are integers, too
        and 0 <= when < _LATEST  # which NaN is not
        and isinstance(host, str)
        and len(host) <= _NAME
        and isinstance(verdict, str)
        and type(count) is int
        and 0 <= count <= _MOST
        and isinstance(run, str)
    )
    if not good:
        return None
    return Entry(kind, device, float(when), host=host, verdict=verdict, count=count, run=run)
