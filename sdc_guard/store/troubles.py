"""What is wrong with a run's record, as findings: of its files and of its steps.

None of this is evidence of corrupt numbers; it says what the tables do not hold, or hold twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .contents import Part, joined
from .losses import rows_missing
from .overrun import KIND as LOST
from .segments import Span
from .sources import TraceFiles

Kind = Literal[
    "damaged files",
    "missing files",
    "duplicate steps: two writers",
    "duplicate steps",
    "steps run backwards",
    "ranks disagree on the step",
    "missing steps",
]
_NAMED: Final = 3  # files and writers that a text names; the others are counted

# what a step is known by: its time and its seconds differ wherever it was run twice
_STEPS = """
    WITH recorded AS (
        SELECT attempt, rank, step, hash(loss, lr, grad_norm, loss_scale, skipped, accumulation,
            batch_hash, tokens) AS content FROM every.steps
    ), single AS (
        SELECT attempt, rank, step, count(*) > 1 AS again, min(content) <> max(content) AS differs
        FROM recorded GROUP BY attempt, rank, step
    )
    SELECT attempt, rank, min(step), max(step), count(*), count(*) FILTER (again),
        count(*) FILTER (differs), min(step) FILTER (again), max(step) FILTER (again)
    FROM single GROUP BY attempt, rank ORDER BY attempt, rank
"""
_ABSENT = """
    WITH following AS (
        SELECT attempt, rank, step, lead(step) OVER (PARTITION BY attempt, rank ORDER BY step)
            AS next FROM every.steps
    )
    SELECT attempt, rank, min(step) + 1, max(next) - 1, count(*)
    FROM following WHERE next - 1 > step GROUP BY attempt, rank
"""
_LOST = f"""
    SELECT DISTINCT attempt, rank, detail FROM every.events
    WHERE kind = '{LOST}' AND detail IS NOT NULL ORDER BY ALL
"""


@dataclass(frozen=True)
class Trouble:
    """A finding about the record.

    Attributes:
        kind: which.
        rank: the rank; None where it concerns several.
        table: the table.
        attempt: the attempt; None where it is not known or concerns several.
        first_step, last_step: the steps concerned, both included; of files, the steps recorded
            just before and after them; None: not known.
        count: rows missing of "damaged files" and "missing files"; else steps, times that they
            run backwards, or ranks apart from the others. None: not known.
        text: one line.
    """

    kind: Kind
    rank: int | None
    table: str
    attempt: int | None
    first_step: int | None
    last_step: int | None
    count: int | None
    text: str


@dataclass(frozen=True)
class _Steps:
    """A row of `_STEPS`."""

    attempt: int
    rank: int
    first: int
    last: int
    count: int
    again: int
    differ: int
    again_first: int | None
    again_last: int | None


def file_troubles(files: TraceFiles, tables: Collection[str]) -> list[Trouble]:
    """The findings about files, one per kind, table and rank.

    Args:
        files: of the run.
        tables: whose files are looked at.

    Raises:
        FileVanishedError: a listed file is gone.
    """
    return [
        trouble
        for table in tables
        for rank in files.ranks(table)
        for trouble in _file_troubles(files, table, rank)
    ]


def step_troubles(rows: Callable[[str], list[Any]], files: TraceFiles) -> list[Trouble]:
    """The findings about the steps of the table "steps", one per kind, attempt and rank.

    Args:
        rows: answers a query.
        files: of the run.

    Raises:
        FileVanishedError: a listed file is gone.
    """
    holed = {trouble.rank for trouble in file_troubles(files, ["steps"])}
    found = [_Steps(*row) for row in rows(_STEPS)]
    contents = {rank: files.contents("steps", rank) for rank in files.ranks("steps")}
    return [
        *(t for steps in found for t in _order_troubles(steps, contents.get(steps.rank, {}))),
        *_rank_troubles(found, holed),
        *_absent(found, rows, holed),
    ]


def _file_troubles(files: TraceFiles, table: str, rank: int) -> list[Trouble]:
    live = files.live(table, rank)
    damaged = _damaged(files, table, rank, live)
    holes = _holes([*live, *damaged], live)
    if not holes:
        return []
    contents = files.contents(table, rank)
    found = []
    for kind, own in _by_kind(holes, damaged).items():
        costs = [rows_missing(hole, holes, contents) for hole in own]
        rows = None if None in costs else sum(cost or 0 for cost in costs)
        first, last = _steps_around(own, contents)
        names = [
            f"{path.name} ({files.damaged[path]})"
            for span, path in damaged.items()
            if kind == "damaged files" and any(_overlap(span, hole) for hole in own)
        ] or [_numbers(hole) for hole in own]
        missing = "an unknown number of rows is" if rows is None else f"{rows:,} rows are"
        text = f"{kind}, {missing} missing of {table} of rank {rank}: {_some(names)}"
        found.append(Trouble(kind, rank, table, None, first, last, rows, text))
    return found


def _damaged(
    files: TraceFiles, table: str, rank: int, live: Mapping[Span, Path]
) -> dict[Span, Path]:
    """Damaged files whose rows no sound file holds."""
    listing = files.listing(table, rank)
    spans = {**{(n, n): path for n, path in listing.segments.items()}, **listing.seals}
    return {
        span: path
        for span, path in sorted(spans.items())
        if path in files.damaged and not any(a <= span[0] and span[1] <= b for a, b in live)
    }


def _holes(known: Iterable[Span], live: Mapping[Span, Path]) -> list[Span]:
    """Numbers that were used and that no sound file has."""
    holes, expected = [], 0
    end = max((last for _, last in known), default=-1)
    for first, last in [*sorted(live), (end + 1, end + 1)]:
        if first > expected:
            holes.append((expected, first - 1))
        expected = max(expected, last + 1)
    return holes


def _by_kind(holes: Sequence[Span], damaged: Collection[Span]) -> dict[Kind, list[Span]]:
    found: dict[Kind, list[Span]] = {}
    for hole in holes:
        is_damage = any(_overlap(span, hole) for span in damaged)
        found.setdefault("damaged files" if is_damage else "missing files", []).append(hole)
    return found


def _overlap(one: Span, two: Span) -> bool:
    return one[0] <= two[1] and two[0] <= one[1]


def _steps_around(
    holes: Sequence[Span], contents: Mapping[Span, Sequence[Part] | None]
) -> tuple[int | None, int | None]:
    begin, end = holes[0][0], holes[-1][1]
    before = [p for span, parts in contents.items() if span[1] < begin for p in parts or ()]
    after = [p for span, parts in contents.items() if span[0] > end for p in parts or ()]
    return (
        max(before, key=lambda part: part.last_segment).ends_at if before else None,
        min(after, key=lambda part: part.first_segment).begins_at if after else None,
    )


def _order_troubles(steps: _Steps, contents: Mapping[Span, Sequence[Part] | None]) -> list[Trouble]:
    parts = [p for own in contents.values() for p in own or () if p.attempt == steps.attempt]
    writers = joined(parts)
    known = bool(writers) and all(part.writer is not None for part in writers)
    where = f"attempt {steps.attempt}, rank {steps.rank}"
    if steps.differ and not (known and len(writers) == 1):
        text = (
            f"duplicate steps: two writers: {steps.again:,} steps were recorded more than once"
            f" and {steps.differ:,} of them differ ({where}); {_split(writers, parts, known)}"
        )
        return [_of_steps("duplicate steps: two writers", steps, steps.again, text)]
    if steps.differ:
        text = (
            f"steps run backwards: one process recorded {steps.again:,} steps again with other"
            f" values ({where}); a resume begins an attempt of its own"
        )
        return [_of_steps("steps run backwards", steps, steps.again, text)]
    if steps.again:
        text = f"duplicate steps: {steps.again:,} were recorded again with equal values ({where})"
        return [_of_steps("duplicate steps", steps, steps.again, text)]
    backward = sum(part.backward for part in writers)
    if backward:
        text = (
            f"steps run backwards {backward:,} times inside one attempt ({where});"
            " a resume begins an attempt of its own"
        )
        return [
            Trouble(
                "steps run backwards", steps.rank, "steps", steps.attempt,
                steps.first, steps.last, backward, text,
            )
        ]  # fmt: skip
    return []


def _of_steps(kind: Kind, steps: _Steps, count: int, text: str) -> Trouble:
    return Trouble(
        kind, steps.rank, "steps", steps.attempt, steps.again_first, steps.again_last, count, text
    )


def _split(writers: Sequence[Part], parts: Sequence[Part], known: bool) -> str:
    if known:
        named = [
            f"{part.writer} wrote {part.rows:,} rows in segments"
            f" {part.first_segment} to {part.last_segment}"
            for part in writers
        ]
        return f"RunReader.of_writer tells them apart: {_some(named)}"
    newest, again = None, []
    for part in sorted(parts, key=lambda part: part.first_segment):
        if newest is not None and part.first_step <= newest:
            again.append(_numbers((part.first_segment, part.last_segment)))
        newest = part.last_step if newest is None else max(newest, part.last_step)
    return f"steps come again in {_some(again) if again else 'a seal, and cannot be told apart'}"


def _rank_troubles(found: Sequence[_Steps], holed: Collection[int | None]) -> list[Trouble]:
    troubles = []
    for attempt in sorted({steps.attempt for steps in found}):
        starts = {s.rank: s.first for s in found if s.attempt == attempt and s.rank not in holed}
        if len(set(starts.values())) < 2:
            continue
        usual = Counter(starts.values()).most_common(1)[0][0]
        apart = sum(start != usual for start in starts.values())
        named = [
            f"{_rank_numbers([r for r, s in starts.items() if s == start])} at step {start}"
            for start in sorted(set(starts.values()))
        ]
        text = (
            f"ranks disagree on the step at the first record of attempt {attempt}:"
            f" {_some(named)}; see that all resume from one checkpoint"
        )
        first, last = min(starts.values()), max(starts.values())
        kind: Kind = "ranks disagree on the step"
        troubles.append(Trouble(kind, None, "steps", attempt, first, last, apart, text))
    return troubles


def _absent(
    found: Sequence[_Steps], rows: Callable[[str], list[Any]], holed: Collection[int | None]
) -> list[Trouble]:
    if all(steps.count == steps.last - steps.first + 1 for steps in found):
        return []
    absent = {
        (steps.attempt, steps.rank): steps.last - steps.first + 1 - steps.count for steps in found
    }
    why: dict[tuple[int, int], list[str]] = {}
    for attempt, rank, detail in rows(_LOST):
        why.setdefault((attempt, rank), []).append(detail)
    troubles = []
    for attempt, rank, first, last, gaps in rows(_ABSENT):
        count = absent[attempt, rank]
        text = f"missing steps: {count:,} in {gaps:,} gaps (attempt {attempt}, rank {rank})"
        text += "; they may be in the files that are damaged or missing" if rank in holed else ""
        text += "".join(f"; {detail}" for detail in why.get((attempt, rank), []))
        troubles.append(Trouble("missing steps", rank, "steps", attempt, first, last, count, text))
    return sorted(troubles, key=lambda t: (t.attempt or 0, t.rank or 0))


def _numbers(span: Span) -> str:
    first, last = span
    return f"segment {first}" if first == last else f"segments {first} to {last}"


def _rank_numbers(ranks: Sequence[int]) -> str:
    return (
        f"rank {ranks[0]}"
        if len(ranks) == 1
        else f"ranks {', '.join(map(str, ranks[:8]))}"
        + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
