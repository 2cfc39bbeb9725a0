"""The verdict never says more than its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.records import Checkpoint, Coverage, Incident
from app.sessions import SessionResult
from app.verdict import SYMBOLS, judge

NOTHING = Coverage(0, None, None, None, 0, 1, 2, 0, 0, 0, 0, None, 0, 0, 0, ())
SOUND = replace(NOTHING, steps=60, first=1, newest=60, ranks=1, layers_measured=2, digests=118)


def incident(*, proven: bool, closed: int | None = None) -> Incident:
    evidence = {"proven": proven, "first": "step 27: x"}
    return Incident(1, 0, 27, closed, "undetermined", evidence, 1)


def checkpoint(status: str) -> Checkpoint:
    return Checkpoint(40, "archive/step=000040", "torch", 1, status, "a reason")


def found(*, proven: bool, current: bool = True) -> SessionResult:
    return SessionResult("0001", "Step 27 is the first.", 26, 27, proven, current)


@pytest.mark.parametrize(
    ("expected", "case"),
    [
        ("unknown", {"covered": NOTHING}),
        ("unknown", {"covered": replace(SOUND, damaged=(("alerts/seg", "no segment"),))}),
        ("unknown", {"covered": replace(SOUND, world_size=8)}),
        ("clean", {}),
        ("clean", {"checkpoints": [checkpoint("clean"), checkpoint("untested")]}),
        ("clean", {"results": [found(proven=True, current=False)]}),
        ("clean", {"results": [SessionResult("0001", "Nothing corrupt was found.", 60)]}),
        ("clean", {"results": [SessionResult("0001")]}),
        ("suspect", {"covered": replace(SOUND, suspected=1)}),
        ("suspect", {"incidents": [incident(proven=False)]}),
        ("suspect", {"checkpoints": [checkpoint("suspect")]}),
        ("suspect", {"covered": replace(SOUND, shadow_passes=3, shadow_unequal=1)}),
        ("suspect", {"results": [found(proven=False)]}),
        ("corrupt", {"covered": replace(SOUND, proven=1)}),
        ("corrupt", {"incidents": [incident(proven=True)]}),
        ("corrupt", {"incidents": [incident(proven=True, closed=30)]}),
        ("corrupt", {"checkpoints": [checkpoint("corrupt")]}),
        ("corrupt", {"results": [found(proven=True)]}),
    ],
)
def test_state(expected: str, case: dict[str, Any]) -> None:
    empty: dict[str, Any] = {"covered": SOUND, "incidents": [], "checkpoints": [], "results": []}
    verdict = judge(**(empty | case))
    assert verdict.state == expected
    assert verdict.headline
    assert verdict.reasons or expected in ("clean", "unknown")


@given(
    suspected=st.integers(0, 3),
    unequal=st.integers(0, 3),
    closed=st.lists(st.none() | st.just(90), max_size=3),
    statuses=st.lists(st.sampled_from(["clean", "suspect", "untested"]), max_size=3),
    results=st.lists(st.booleans(), max_size=2),
    damaged=st.booleans(),
)
def test_nothing_convicts_without_proof_and_nothing_acquits_with_a_doubt(
    suspected: int,
    unequal: int,
    closed: list[int | None],
    statuses: list[str],
    results: list[bool],
    damaged: bool,
) -> None:
    verdict = judge(
        replace(
            SOUND,
            suspected=suspected,
            shadow_unequal=unequal,
            damaged=(("a", "b"),) if damaged else (),
        ),
        [incident(proven=False, closed=step) for step in closed],
        [checkpoint(status) for status in statuses],
        [replace(found(proven=False), current=current) for current in results],
    )
    assert verdict.state != "corrupt"
    doubt = suspected or unequal or None in closed or "suspect" in statuses or True in results
    assert (verdict.state == "suspect") == bool(doubt)
    assert (verdict.state == "clean") == (not doubt and not damaged)


def test_lost_steps_and_missing_files_are_told() -> None:
    verdict = judge(replace(SOUND, steps=55), [], [], [])
    assert verdict.reasons == ("5 steps in between left no record.",)
    broken = replace(SOUND, suspected=2, damaged=(("a", "b"),))
    assert any("could not be opened" in line for line in judge(broken, [], [], []).reasons)
    assert "of 8 ranks" in judge(replace(SOUND, world_size=8), [], [], []).reasons[0]


def test_clean_says_which_part_of_the_state_was_compared() -> None:
    (part,) = judge(replace(SOUND, watched=0.042), [], [], []).reasons
    assert part.startswith("4.2 % of the state's transitions from step to step were compared;")
    assert judge(replace(SOUND, watched=1.0), [], [], []).reasons == ()


def test_each_state_has_a_symbol_of_its_own() -> None:
    assert len(set(SYMBOLS.values())) == len(SYMBOLS) == 4
