"""Bisection against a naive scan of the same verdicts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forensics.search import Verdict, bisect


@st.composite
def archives(draw: st.DrawFn) -> list[Verdict]:
    """Clean up to an edge, corrupt from there, some of them untestable."""
    count = draw(st.integers(1, 80))
    edge = draw(st.integers(0, count))
    untestable = draw(st.sets(st.integers(0, count - 1)))
    return [
        "untestable" if place in untestable else "clean" if place < edge else "corrupt"
        for place in range(count)
    ]


@given(archives())
def test_finds_the_edge_and_judges_each_once(verdicts: list[Verdict]) -> None:
    found = bisect(len(verdicts), verdicts.__getitem__)
    clean = [place for place, verdict in enumerate(verdicts) if verdict == "clean"]
    corrupt = [place for place, verdict in enumerate(verdicts) if verdict == "corrupt"]
    assert found.last_clean == (clean[-1] if clean else None)
    assert found.first_corrupt == (corrupt[0] if corrupt else None)
    places = [place for place, _ in found.probes]
    assert len(places) == len(set(places))
    assert all(verdicts[place] == verdict for place, verdict in found.probes)


@given(archives())
def test_exact_only_without_a_hole_before_the_first_corrupt(verdicts: list[Verdict]) -> None:
    found = bisect(len(verdicts), verdicts.__getitem__)
    if found.first_corrupt is None:
        assert not found.exact
    else:
        start = -1 if found.last_clean is None else found.last_clean
        between = verdicts[start + 1 : found.first_corrupt]
        assert found.exact == (not between)


@given(st.integers(1, 2000), st.data())
def test_number_of_probes(count: int, data: st.DataObject) -> None:
    edge = data.draw(st.integers(0, count))
    found = bisect(count, lambda place: "clean" if place < edge else "corrupt")
    assert len(found.probes) <= math.ceil(math.log2(count)) + 2 if count > 1 else 1


def test_the_empty_archive() -> None:
    found = bisect(0, lambda place: "clean")
    assert (found.last_clean, found.first_corrupt, found.probes) == (None, None, ())
