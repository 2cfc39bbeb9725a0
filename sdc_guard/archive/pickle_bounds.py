"""Whether a pickle would take memory out of proportion to its size.

An unpickler that runs nothing still obeys: a place in its memo with the number 2^31 makes it
allocate 16 to 32 GB, a text said to be a terabyte long that terabyte. This looks at a pickle's
operations without carrying them out (https://docs.python.org/3/library/pickletools.html lists
them; the sizes of their arguments are those of the pickle protocols 0 to 5).
"""

from __future__ import annotations

import pickle
import re

_RUN = re.compile(  # operations whose argument has a fixed size, none of which allocates by it
    rb"(?:[(012NRQbd}aeltsu\])o\x81\x85-\x89\x8f-\x91\x93\x94\x97\x98]"
    rb"|[Khq\x80\x82].|[M\x83]..|[Jj\x84].{4}|[G\x95].{8})++",
    re.DOTALL,
)
_COUNTED = {  # operation: bytes of the count that comes before its argument
    **dict.fromkeys(b"\x8cUC\x8a", 1),
    **dict.fromkeys(b"TXB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e\x96", 8),
}
_LINES = {**dict.fromkeys(b"ILFSVPg", 1), **dict.fromkeys(b"ci", 2)}
_STOP, _PUT, _LONG_PUT = b".pr"


def check_bounds(content: bytes) -> None:
    """Refuse a pickle that asks for more memory than a pickle of its size needs.

    Raises:
        pickle.UnpicklingError: it does, is cut off, or has an operation that does not exist.
    """
    at = 0
    while True:
        run = _RUN.match(content, at)
        at = run.end() if run else at
        if at >= len(content):
            raise pickle.UnpicklingError("cut off")
        operation = content[at]
        if operation == _STOP:
            return
        at = _after(content, at + 1, operation)


def _after(content: bytes, at: int, operation: int) -> int:
    """Where the operation ends whose argument begins at `at`."""
    if width := _COUNTED.get(operation):
        end = at + width + int.from_bytes(content[at : at + width], "little")
        if end > len(content):
            raise pickle.UnpicklingError("longer than its content")
        return end
    if operation == _LONG_PUT:
        _within(int.from_bytes(content[at : at + 4], "little"), content)
        return at + 4
    if operation == _PUT:
        end = _line(content, at)
        digits = content[at : end - 1].strip()
        _within(int(digits) if digits.isdigit() and len(digits) < 12 else len(content), content)
        return end
    if operation not in _LINES:
        raise pickle.UnpicklingError("no such operation")
    for _ in range(_LINES[operation]):
        at = _line(content, at)
    return at


def _within(number: int, content: bytes) -> None:
    # places in the memo are numbered one after the other, so no more of them than bytes
    if number >= len(content):
        raise pickle.UnpicklingError("a place in the memo that no pickle of this size has")


def _line(content: bytes, at: int) -> int:
    end = content.find(b"\n", at)
    if end < 0:
        raise pickle.UnpicklingError("cut off")
    return end + 1
