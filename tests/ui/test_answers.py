"""The sentences that the pages begin with: never more than the evidence."""

from __future__ import annotations

from typing import Any

from app.answers import rank_of, when, where, which
from app.records import Alert, Checkpoint, Incident
from app.sessions import SessionResult, first_bad


def incident(opened: int, *, proven: bool) -> Incident:
    return Incident(
        attempt=1,
        opened=opened,
        closed=None,
        rank=0,
        verdict="undetermined",
        evidence={"proven": proven},
        alerts=1,
    )


def alert(severity: str, layer: str = "w", **detail: Any) -> Alert:
    return Alert(7, 3, layer, "carried_digest", 1.0, 0.5, severity, detail)


def kept(*statuses: str) -> list[Checkpoint]:
    return [
        Checkpoint(10 * n, f"archive/{n}", "torch", 1, status, "")
        for n, status in enumerate(statuses, 1)
    ]


def test_when_says_what_it_rests_on() -> None:
    nothing = when([], kept("clean", "clean"), [])
    assert (nothing.state, nothing.reasons) == ("unknown", ())
    odd = when([incident(4, proven=False)], kept("clean", "suspect"), [])
    assert (odd.state, odd.sentence) == (
        "suspect", "The first alert is of step 4, from statistics alone.",
    )  # fmt: skip
    assert odd.reasons == ("First suspect checkpoint: step 20; last clean one: step 10.",)
    # a proven one is told though another was opened before
    both = when([incident(4, proven=False), incident(12, proven=True)], [], [])
    assert both.state == "corrupt"
    assert "step 12, proven by an exact comparison" in both.sentence
    assert when([], kept("suspect"), []).sentence == (
        "First suspect checkpoint: step 10; no clean one before it."
    )
    found = SessionResult("0001", "found", last_clean=20, first_corrupt=1_040, proven=True)
    assert first_bad([incident(74, proven=True)], [found]) == 74
    assert first_bad([incident(74, proven=False)], [found]) == 1_040
    assert first_bad([incident(19, proven=True), incident(2_000, proven=True)], [found]) == 1_040
    searched = when([incident(4, proven=False)], kept("clean"), [found])
    assert searched.state == "corrupt"
    assert searched.sentence.startswith("After step 20, and not after step 1,040")


def test_where_names_a_rank_only_if_the_alert_accuses_it() -> None:
    opened = incident(7, proven=True)
    named = where(opened, [alert("suspect", "v"), alert("proven", index=77, bits=[22])])
    assert named.sentence == "w on rank 3, step 7, element 77, bit 22: proven."
    assert named.reasons == ("Its alerts name 2 layers in all.",)
    undecided = alert("proven", culprit=None, ranks=[0, 1])
    assert rank_of(undecided) is None
    said = where(opened, [undecided]).sentence
    assert said == "w, step 7: proven, and which rank is wrong is not known."
    assert rank_of(alert("proven", culprit=1)) == 1
    assert "names no layer" in where(opened, [alert("proven", "")]).sentence
    assert where(None, []).state == "unknown"


def test_which_is_what_the_guard_knew() -> None:
    assert which([]).state == "unknown"
    assert which(kept("clean", "clean")).state == "unknown"  # files may have changed since
    held = which(kept("clean", "suspect", "corrupt"))
    assert held.sentence == "First suspect checkpoint: step 20; last clean one: step 10."
    assert "Nobody has searched this run yet" in held.reasons[0]
