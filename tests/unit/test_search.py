"""Bisection and k-section against a naive scan of the same verdicts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.search import Found, Verdict, bisect
from forensics.search.binary import Binary
from forensics.search.mirrored import Mirrored, other
from forensics.search.planner import drive
from forensics.search.scan import Scan
from forensics.search.verdicts import transitions


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


def truth(verdicts: Sequence[Verdict]) -> tuple[int | None, int | None]:
    """Last clean and first corrupt place, by looking at all."""
    clean = [place for place, verdict in enumerate(verdicts) if verdict == "clean"]
    corrupt = [place for place, verdict in enumerate(verdicts) if verdict == "corrupt"]
    return (clean[-1] if clean else None), (corrupt[0] if corrupt else None)


def bracket(found: Found) -> tuple[int | None, int | None]:
    return found.last_clean, found.first_corrupt


def most(count: int, found: Found) -> int:
    """The bound: 2 ends, the edge among the rest, and the untestable ones met."""
    met = sum(verdict == "untestable" for _, verdict in found.probes)
    return math.ceil(math.log2(count)) + 2 + met


@given(archives())
def test_finds_the_edge_and_judges_each_once(verdicts: list[Verdict]) -> None:
    found = bisect(len(verdicts), verdicts.__getitem__)
    assert bracket(found) == truth(verdicts)
    places = [place for place, _ in found.probes]
    assert len(places) == len(set(places))
    assert all(verdicts[place] == verdict for place, verdict in found.probes)
    assert len(places) <= most(len(verdicts), found)


@given(archives())
def test_exact_only_without_a_hole_before_the_first_corrupt(verdicts: list[Verdict]) -> None:
    found = bisect(len(verdicts), verdicts.__getitem__)
    if found.first_corrupt is None:
        assert not found.exact
    else:
        start = -1 if found.last_clean is None else found.last_clean
        between = verdicts[start + 1 : found.first_corrupt]
        assert found.exact == (not between)


def test_a_thousand_patterns(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        count = rng.randint(1, 200)
        edge = rng.randint(0, count)
        share = rng.choice([0, 0, 0.1, 0.5])
        stretch = range(rng.randrange(count), count if rng.random() < 0.3 else 0)
        skipped = {place for place in range(count) if rng.random() < 0.1 * rng.choice([0, 1])}
        verdicts: list[Verdict] = [
            "untestable" if rng.random() < share or place in stretch
            else "clean" if place < edge else "corrupt"
            for place in range(count)
        ]  # fmt: skip
        found = drive(Binary(count, skipped), verdicts.__getitem__)
        seen = ["untestable" if p in skipped else verdict for p, verdict in enumerate(verdicts)]
        assert bracket(found) == truth(seen)
        places = [place for place, _ in found.probes]
        assert len(places) == len(set(places))
        assert not skipped.intersection(places)
        assert found.skipped == tuple(sorted(skipped))
        assert len(places) <= most(count, found)


@pytest.mark.parametrize("edge", range(65))
def test_64_checkpoints_take_8_judgings_at_most(edge: int) -> None:
    found = bisect(64, lambda place: "clean" if place < edge else "corrupt")
    assert len(found.probes) <= 8
    assert {63, 0} <= {place for place, _ in found.probes}


@given(st.integers(1, 2000), st.data())
def test_number_of_judgings(count: int, data: st.DataObject) -> None:
    edge = data.draw(st.integers(0, count))
    planner = Binary(count)
    said = planner.remaining()
    found = drive(planner, lambda place: "clean" if place < edge else "corrupt")
    assert len(found.probes) <= min(said, math.ceil(math.log2(count)) + 2)


@given(archives(), st.integers(2, 9))
def test_several_at_once_give_the_same_answer(verdicts: list[Verdict], jobs: int) -> None:
    found = drive(Binary(len(verdicts)), verdicts.__getitem__, jobs)
    assert bracket(found) == truth(verdicts)
    assert found.exact == bisect(len(verdicts), verdicts.__getitem__).exact
    places = [place for place, _ in found.probes]
    assert len(places) == len(set(places))


@given(archives(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_at_every_moment_the_bracket_holds_the_first_corrupt(
    verdicts: list[Verdict], jobs: int, rng: random.Random
) -> None:
    planner = Binary(len(verdicts))
    _, first = truth(verdicts)
    while places := list(planner.ask(jobs)):
        assert len(places) <= jobs
        rng.shuffle(places)  # whoever is ready first
        for place in places:
            planner.tell(place, verdicts[place])
            low, high = bracket(planner.found())
            assert low is None or first is None or low < first
            assert high is None or (first is not None and first <= high)


@given(st.integers(1, 500), st.integers(1, 9), st.data())
def test_rounds_of_a_search_by_k_sections(count: int, jobs: int, data: st.DataObject) -> None:
    edge = data.draw(st.integers(0, count))
    planner = Binary(count)
    most_rounds, rounds = planner.remaining(jobs), 0
    while places := planner.ask(jobs):
        rounds += 1
        for place in places:
            planner.tell(place, "clean" if place < edge else "corrupt")
    assert rounds <= most_rounds
    # 2 ends, then each round leaves 1 part of jobs + 1
    assert most_rounds <= math.ceil(2 / jobs) + math.ceil(math.log(max(count - 1, 1), jobs + 1) + 1)


def test_a_damaged_stretch_is_left_quickly() -> None:
    verdicts: list[Verdict] = ["clean"] * 400 + ["untestable"] * 200 + ["corrupt"] * 400
    found = bisect(1000, verdicts.__getitem__)
    assert bracket(found) == (399, 600)
    damaged: list[Verdict] = [
        "untestable" if 480 <= place < 520 else "clean" if place < 700 else "corrupt"
        for place in range(1000)
    ]
    found = bisect(1000, damaged.__getitem__)
    assert bracket(found) == (699, 700)
    assert len(found.untestable) <= 15  # of 40, within the bound; one after the other would be 21
    assert len(found.probes) <= most(1000, found)


@given(archives())
def test_the_first_clean_one_is_found_in_the_mirror(verdicts: list[Verdict]) -> None:
    mirrored = [other(verdict) for verdict in verdicts]
    planner = Mirrored(Binary(len(verdicts)))
    assert bracket(drive(planner, mirrored.__getitem__)) == truth(verdicts)
    assert planner.remaining() == 0
    assert planner.stage == 0


@given(st.lists(st.sampled_from(["clean", "corrupt", "untestable"]), min_size=1, max_size=30))
def test_a_scan_lists_each_transition(verdicts: list[Verdict]) -> None:
    found = drive(Scan(len(verdicts)), verdicts.__getitem__, 3)
    assert [place for place, _ in found.probes] == list(range(len(verdicts)))
    judged = [place for place, verdict in enumerate(verdicts) if verdict != "untestable"]
    changes = transitions(dict(found.probes))
    assert [(one.start, one.end) for one in changes] == [
        (a, b) for a, b in pairwise(judged) if verdicts[a] != verdicts[b]
    ]
    assert all(one.verdicts == (verdicts[one.start], verdicts[one.end]) for one in changes)
    _, first = truth(verdicts)
    assert found.first_corrupt == first
    later = [p for p, v in enumerate(verdicts) if first is not None and v == "clean" and p > first]
    assert list(found.later_clean) == later
    alone = first is not None and all(verdict == "clean" for verdict in verdicts[:first])
    assert found.all_before_clean == alone


def test_the_empty_archive() -> None:
    found = bisect(0, lambda place: "clean")
    assert (found.last_clean, found.first_corrupt, found.probes) == (None, None, ())


def test_trusted_ends_are_not_judged() -> None:
    planner = Binary(9, known={0: "clean", 8: "corrupt"})
    found = drive(planner, lambda place: "clean" if place < 5 else "corrupt")
    assert bracket(found) == (4, 5)
    assert not {0, 8} & {place for place, _ in found.probes}
