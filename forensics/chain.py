"""The chain of digests: what a step left behind against what the next one found.

Where a run digests every tensor at every step, a chain without a break proves that nothing but
the optimizer wrote to the recorded state. With a digest budget each step's digests are of a part
of it: a break is as much of a proof, but its absence speaks of that part only (see `watched`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sdc_guard.store.reader import RunReader

# A tensor as a step found it, and as the step before had left it. What the script wrote on purpose
# (refresh) is no link of the chain.
_NEXT = """
    FROM digests AS found JOIN digests AS gone ON gone.step = found.step - 1
        AND gone.rank = found.rank AND gone.kind = found.kind AND gone.layer = found.layer
    WHERE found.phase = 'before' AND gone.phase = 'after'
"""
_UNTOLD = "AND found.step NOT IN (SELECT step FROM events WHERE kind = 'refresh')"
# The same over steps that were skipped before they reached the optimizer, as (found, gone)
_OVER = """
    FROM (VALUES {links}) AS links(step, past)
    JOIN digests AS found ON found.step = links.step
    JOIN digests AS gone ON gone.step = links.past
        AND gone.rank = found.rank AND gone.kind = found.kind AND gone.layer = found.layer
    WHERE found.phase = 'before' AND gone.phase = 'after'
"""
_EQUAL = "(found.h, found.s1, found.s2) IS NOT DISTINCT FROM (gone.h, gone.s1, gone.s2)"

_IDLE = """
    SELECT DISTINCT step FROM steps WHERE skipped AND step NOT IN (SELECT step FROM digests)
    ORDER BY step
"""


@dataclass(frozen=True)
class Break:
    """State that changed between two steps.

    Attributes:
        step: the step that found it changed.
        past: the step that had left it.
        kind, layer: what changed.
        within: whether both are of one attempt. If so it changed at rest; else the attempt was
            resumed from something else.
    """

    step: int
    past: int
    kind: str
    layer: str
    within: bool


def pairs(reader: RunReader) -> list[str]:
    """FROM clauses, with WHERE, of a run's links: `found` as it was found, `gone` as it was left.

    A tensor that was digested twice after a step appears twice.
    """
    idle = [row[0] for row in reader.rows(_IDLE)]
    refreshed = refreshes(reader)
    links = [
        f"({step}, {past})"
        for past, step in _over(idle)
        if not refreshed & set(range(past + 1, step + 1))
    ]
    return [_NEXT + _UNTOLD, *([_OVER.format(links=", ".join(links))] if links else [])]


def refreshes(reader: RunReader) -> set[int]:
    """Steps before which the script wrote to the state on purpose."""
    return {row[0] for row in reader.rows("SELECT step FROM events WHERE kind = 'refresh'")}


def all_breaks(reader: RunReader) -> list[Break]:
    """Where the chain of a run is broken, by step."""
    columns = "found.step, gone.step, found.kind, found.layer, found.attempt = gone.attempt"
    names = reader.run_file.layer_names()
    rows = {
        row
        for pair in pairs(reader)
        for row in reader.rows(f"SELECT DISTINCT {columns} {pair} AND NOT {_EQUAL}")
    }
    return [
        Break(step, past, kind, names[layer], within)
        for step, past, kind, layer, within in sorted(rows)
        if layer in names
    ]


def breaks(reader: RunReader) -> list[tuple[int, str, str]]:
    """(step, kind, layer) of state that changed between two steps of one attempt."""
    return [(found.step, found.kind, found.layer) for found in all_breaks(reader) if found.within]


def carried(reader: RunReader, step: int) -> dict[tuple[int, str, str], bool]:
    """Of each (rank, kind, layer) digested on both sides: did `step` find what was left?

    What the script wrote there on purpose counts as left.
    """
    names = reader.run_file.layer_names()
    purpose = step in refreshes(reader)
    columns = f"found.rank, found.kind, found.layer, bool_and({_EQUAL}) OR {purpose}"
    return {
        (rank, kind, names[layer]): equal
        for pair in ([_NEXT] if purpose else pairs(reader))
        for rank, kind, layer, equal in reader.rows(
            f"SELECT {columns} {pair} AND found.step = $step GROUP BY ALL", {"step": step}
        )
        if layer in names
    }


def _over(idle: list[int]) -> list[tuple[int, int]]:
    """(the step before, the step after) of each stretch of consecutive steps."""
    stretches: list[tuple[int, int]] = []
    for step in idle:
        if stretches and stretches[-1][1] == step:
            stretches[-1] = (stretches[-1][0], step + 1)
        else:
            stretches.append((step - 1, step + 1))
    return stretches
