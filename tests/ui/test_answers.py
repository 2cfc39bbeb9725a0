"""The sentences that the pages begin with: never more than the evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.answers import chosen, leading, rank_of, when, where, which
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
    held = when([], kept("suspect"), [])
    assert (held.state, held.sentence) == (
        "suspect", "First suspect checkpoint: step 10; no clean one before it.",
    )  # fmt: skip
    assert when([], kept("suspect", "corrupt"), []).state == "corrupt"
    found = SessionResult("0001", "found", last_clean=20, first_corrupt=1_040, proven=True)
    assert first_bad([incident(74, proven=True)], [found]) == 74
    assert first_bad([incident(74, proven=False)], [found]) == 1_040
    assert first_bad([incident(19, proven=True), incident(2_000, proven=True)], [found]) == 1_040
    searched = when([incident(4, proven=False)], kept("clean"), [found])
    assert searched.state == "corrupt"
    assert searched.sentence.startswith("After step 20, and not after step 1,040")
    assert searched.reasons == ("The first alert is of step 4, from statistics alone.",)
    guessed = replace(found, last_clean=None, proven=False)
    early = when([], [], [guessed])
    assert early.state == "suspect"
    assert early.sentence.startswith("After the start, and not after step 1,040")


def test_the_incident_to_look_at_is_the_one_asked_for_or_the_first_proven_one() -> None:
    odd, late, first = (incident(n, proven=n > 4) for n in (4, 12, 9))
    among = [odd, late, first]
    assert leading(among) is first
    assert leading([late, odd]) is late
    assert leading([]) is None
    assert chosen(among, "12") is late
    assert chosen(among, "no such") is chosen(among, None) is first
    assert chosen([], "12") is None


def test_where_names_a_rank_only_if_the_alert_accuses_it() -> None:
    opened = incident(7, proven=True)
    named = where(opened, [alert("suspect", "v"), alert("proven", index=77, bits=[22])])
    assert named.sentence == "w on rank 3, step 7, element 77, bit 22: proven."
    assert named.state == "corrupt"
    two = where(opened, [alert("proven", index=77, bits=[3, 22])]).sentence
    assert two == "w on rank 3, step 7, element 77, bits 3, 22: proven."
    guessed = where(incident(7, proven=False), [alert("suspect")])
    assert guessed.state == "suspect"
    assert guessed.sentence == "w on rank 3, step 7: from statistics alone."
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
