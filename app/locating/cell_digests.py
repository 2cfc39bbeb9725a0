"""Exact comparisons of one layer at one step, for the page Locate."""

from __future__ import annotations

import streamlit as st

from sdc_guard.store.trace_reader import TraceReader

from ..wording import count, plain
from . import queries_cell


def digests(reader: TraceReader, layer: int, rank: int, step: int) -> None:
    """Whether the layer's bits were carried into the step, and which ranks have the same."""
    carried = queries_cell.carried(reader, layer, rank, step)
    votes = queries_cell.votes(reader, layer, step)
    kinds = sorted({*carried, *(kind for kind, _ in votes)})
    st.markdown("**Digests: exact comparisons**")
    if not kinds:
        st.write(
            "None of this layer are recorded here: its bits were not compared at this step. "
            "`sdc-bisect verify` replays it."
        )
        return
    found = {True: "✔ the same bits", False: "✖ changed", None: "not compared"}
    several = any(sum(map(len, groups)) > 1 for groups in votes.values())
    table = {
        "tensor": [plain(kind) for kind in kinds],
        f"rank {rank}: left by step {step - 1:,}, found by step {step:,}": [
            found[carried.get(kind)] for kind in kinds
        ],
    }
    if several:
        for at in (step - 1, step):
            table[f"left by step {at:,}, over ranks"] = [
                vote_text(votes.get((kind, at), [])) for kind in kinds
            ]
    st.table(table, hide_index=True)
    if several:
        st.caption(
            "Ranks that were the same after the step before and differ now: one of them has "
            "changed. What each rank has for its own, as a shard, always differs."
        )


def vote_text(groups: list[list[int]]) -> str:
    """How many ranks have the same digest, and who does not."""
    if not groups:
        return "not recorded"
    if len(groups) == 1:
        return f"✔ {count(len(groups[0]), 'rank')} the same" if len(groups[0]) > 1 else "one rank"
    if len(groups[0]) > sum(map(len, groups[1:])):
        odd = sorted(rank for group in groups[1:] for rank in group)
        told = ", ".join(map(str, odd[:8])) + ("…" if len(odd) > 8 else "")
        return f"✖ {count(len(groups[0]), 'rank')} the same, not rank {told}"
    return f"✖ {len(groups)} versions, no majority"
