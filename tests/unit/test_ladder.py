"""The replay ladder: each rung by its own evidence, and never more than that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.ladder import (
    MOST_REPLAYS,
    VERDICTS,
    Elsewhere,
    Repeats,
    judge,
    wants_another,
)

SHOWN = Repeats(3, 0)
HARDWARE = {"intermittent", "persistent on a device"}


def other(*results: str, matched: int = 2, place: str = "cuda:1") -> Elsewhere:
    return Elsewhere(place, results, matched)


TABLE = {
    # original, here, elsewhere, before, alerted: verdict, place
    "nothing was run": ("a", "", [], SHOWN, True, "undetermined", None),
    "it repeats": ("a", "a", [], SHOWN, False, "sound", None),
    "it repeats, and an alert has no place to be compared with": (
        "a", "a", [], SHOWN, True, "undetermined", None),
    "odd once": ("a", "bb", [], SHOWN, False, "intermittent", "here"),
    "odd once, one replay alone": ("a", "b", [], SHOWN, False, "undetermined", None),
    "odd once, before anything was shown": ("a", "bb", [], Repeats(2, 0), False,
                                            "undetermined", None),
    "odd once, kernels that may differ": ("a", "bb", [], Repeats(21, 0, False), False,
                                          "undetermined", None),
    "odd once, such kernels seen to repeat": ("a", "bb", [], Repeats(22, 0, False), False,
                                              "intermittent", "here"),
    "odd often": ("a", "bb", [], Repeats(5, 6), False, "undetermined", None),
    "replays differ": ("a", "bc", [], SHOWN, False, "undetermined", None),
    "one replay is odd": ("a", "baa", [], SHOWN, False, "undetermined", None),
    "odd once, replays right elsewhere too": ("a", "bb", [other("b")], SHOWN, False,
                                              "intermittent", "here"),
    "odd once, but elsewhere it is the same": ("a", "bb", [other("a")], SHOWN, False,
                                               "undetermined", None),
    "all differ": ("a", "bb", [other("c", "c")], SHOWN, False, "undetermined", None),
    "sound on both": ("a", "a", [other("a")], SHOWN, False, "sound", None),
    "an alert, the same on both": ("a", "a", [other("a")], SHOWN, True, "data or software", None),
    "one other device disagrees": ("a", "a", [other("b", "b")], SHOWN, False,
                                   "persistent on a device", None),
    "one other device disagrees once": ("a", "a", [other("b")], SHOWN, False,
                                        "undetermined", None),
    "one that never agreed": ("a", "a", [other("b", "b", matched=0)], SHOWN, False,
                              "sound", None),
    "two others agree on another result": (
        "a", "a", [other("b", "b"), other("b", "b", place="cuda:2")], SHOWN, False,
        "persistent on a device", "here"),
    "two others, each with its own result": (
        "a", "a", [other("b", "b"), other("c", "c", place="cuda:2")], SHOWN, False,
        "undetermined", None),
    "one of two others is odd": (
        "a", "a", [other("b", "b"), other("a", place="cuda:2")], SHOWN, False, "sound", None),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    original, here, elsewhere, before, alerted, verdict, place = TABLE[name]
    found = judge(original, list(here), elsewhere, before, alerted=alerted)
    assert (found.verdict, found.place) == (verdict, place)
    assert found.reason
    assert 0 <= found.confidence <= 1


results = st.sampled_from("abc")
elsewheres = st.lists(
    st.builds(
        Elsewhere,
        st.sampled_from(["rank 1", "rank 2", "rank 3"]),
        st.lists(results, min_size=1, max_size=2).map(tuple),
        st.integers(0, 3),
    ),
    max_size=3,
    unique_by=lambda place: place.place,
)
repeats = st.builds(Repeats, st.integers(0, 40), st.integers(0, 40), st.booleans())


@given(results, st.lists(results, max_size=3), elsewheres, repeats, st.booleans())
def test_no_verdict_claims_more_than_its_evidence(
    original: str, here: list[str], elsewhere: list[Elsewhere], before: Repeats, alerted: bool
) -> None:
    found = judge(original, here, elsewhere, before, alerted=alerted)
    assert found.verdict == "sound" or found.verdict in VERDICTS
    agrees = any(set(place.results) == {original} for place in elsewhere)
    if agrees:
        assert found.verdict not in HARDWARE
    if found.verdict == "intermittent":
        assert before.shown
        assert len(here) >= 2
        assert len(set(here)) == 1
        assert here[0] != original
    if found.place == "here" and found.verdict == "persistent on a device":
        against = [p for p in elsewhere if len(p.results) > 1 and original not in p.results]
        assert sum(place.matched > 0 for place in against) >= 2
    if found.verdict == "data or software":
        assert alerted
        assert agrees
        assert set(here) == {original}
    if found.harmed:
        assert found.verdict in HARDWARE
        assert found.differs


@given(results, st.lists(results, max_size=5), repeats)
def test_replays_end(original: str, here: list[str], before: Repeats) -> None:
    taken: list[str] = []
    while wants_another(original, taken, before) and len(taken) < len(here):
        taken.append(here[len(taken)])
    assert len(taken) <= MOST_REPLAYS
    if taken and taken == [original] * len(taken) and not wants_another(original, taken, before):
        assert len(taken) == (1 if before.matched else 2)


def test_confidence_grows_with_what_repeated() -> None:
    few, many = (
        judge("a", ["b", "b"], [], Repeats(count), alerted=False).confidence for count in (3, 300)
    )
    assert few < many
    # Wilson's lower end of n of n is n/(n + z²)
    assert few == pytest.approx(3 / (3 + 1.959964**2), rel=1e-5)
