"""How many rows a hole in the files costs, from what the files around it say: pure.

Each writer notes in every file how many rows it had written before. The rows between two of its
files are the difference. What the last file of a writer held before a hole is known to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .contents import Part
from .segments import Span


def rows_missing(
    hole: Span, holes: Sequence[Span], contents: Mapping[Span, Sequence[Part] | None]
) -> int | None:
    """Rows that the files of a hole held; None: not known.

    Args:
        hole: its first and last number.
        holes: all holes of that folder.
        contents: of the sound files that have to be read, None where it was not recorded.
    """
    before = [span for span in contents if span[1] < hole[0]]
    after = [span for span in contents if span[0] > hole[1]]
    if not after or not contents[min(after)]:
        return None
    near = contents[max(before)] if before else []
    if near is None:
        return None
    earlier = [part for span in before for part in contents[span] or ()]
    later = [part for span in after for part in contents[span] or ()]
    total = 0
    for writer in {part.writer for part in later}:
        missing = _between(writer, earlier, later, holes)
        if missing is None:
            return None
        total += missing
    files = hole[1] - hole[0] + 1
    if total < files:  # a file has a row at least: these had another writer
        return None
    if files == 1:  # and one writer, who is known then
        return total
    # an earlier writer may have ended in the hole, or an earlier attempt lie in it
    present = {part.writer for part in later}
    ended = any(part.writer not in present for part in near)
    return None if ended or (not before and min(p.attempt for p in later) > 1) else total


def _between(
    writer: str | None, earlier: Sequence[Part], later: Sequence[Part], holes: Sequence[Span]
) -> int | None:
    own = [part for part in earlier if part.writer == writer]
    following = min(
        (part for part in later if part.writer == writer), key=lambda part: part.first_segment
    )
    if writer is None or following.rows_before is None:
        return None
    last = max(own, key=lambda part: part.last_segment, default=None)
    if last is not None and last.rows_before is None:
        return None
    end = 0 if last is None else (last.rows_before or 0) + last.rows
    missing = following.rows_before - end
    begin = -1 if last is None else last.last_segment
    crossed = [hole for hole in holes if begin < hole[0] and hole[1] < following.first_segment]
    return missing if missing == 0 or (missing > 0 and len(crossed) == 1) else None
