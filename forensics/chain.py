"""The chain of digests: what a step left behind against what the next one found.

Where a run digests every tensor at every step, a chain without a break proves that nothing but
the optimizer wrote to the recorded state. With a digest budget each step's digests are of a part
of it: a break is as much of a proof, but its absence speaks of that part only (see `watched`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sdc_guard.store.trace_reader import TraceReader

# A tensor as a step found it, and as the step before had left it
_LINKS = """
    FROM digests AS found JOIN digests AS gone ON gone.step = found.step - 1
        AND gone.rank = found.rank AND gone.kind = found.kind AND gone.layer = found.layer
    WHERE found.phase = 'before' AND gone.phase = 'after'
"""
# What the script wrote on purpose is no link of the chain
LINKS = f"{_LINKS} AND found.step NOT IN (SELECT step FROM events WHERE kind = 'refresh')"
_EQUAL = "(found.h, found.s1, found.s2) IS NOT DISTINCT FROM (gone.h, gone.s1, gone.s2)"


@dataclass(frozen=True)
class Break:
    """State that changed between the step before `step` and that one.

    Attributes:
        step: the step that found it changed.
        kind, layer: what changed.
        within: whether both steps are of one attempt. If so it changed at rest; else the attempt
            was resumed from something else.
    """

    step: int
    kind: str
    layer: str
    within: bool


def refreshes(reader: TraceReader) -> set[int]:
    """Steps before which the script wrote to the state on purpose."""
    return {row[0] for row in reader.rows("SELECT step FROM events WHERE kind = 'refresh'")}


def all_breaks(reader: TraceReader) -> list[Break]:
    """Where the chain of a run is broken, by step."""
    names = reader.run_file.layer_names()
    columns = "found.step, found.kind, found.layer, found.attempt = gone.attempt"
    rows = reader.rows(f"SELECT DISTINCT {columns} {LINKS} AND NOT {_EQUAL} ORDER BY ALL")
    return [
        Break(step, kind, names[layer], within)
        for step, kind, layer, within in rows
        if layer in names
    ]


def breaks(reader: TraceReader) -> list[tuple[int, str, str]]:
    """(step, kind, layer) of state that changed between two steps of one attempt."""
    return [(found.step, found.kind, found.layer) for found in all_breaks(reader) if found.within]


def carried(reader: TraceReader, step: int) -> dict[tuple[int, str, str], bool]:
    """Of each (rank, kind, layer) digested on both sides: did `step` find what was left?

    What the script wrote there on purpose counts as left.
    """
    names = reader.run_file.layer_names()
    purpose = step in refreshes(reader)
    columns = f"found.rank, found.kind, found.layer, bool_and({_EQUAL})"
    rows = reader.rows(
        f"SELECT {columns} {_LINKS} AND found.step = $step GROUP BY 1, 2, 3", {"step": step}
    )
    return {
        (rank, kind, names[layer]): equal or purpose
        for rank, kind, layer, equal in rows
        if layer in names
    }
