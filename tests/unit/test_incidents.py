"""What an incident says of its alerts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.alert import Alert, Severity
from sdc_guard.detect.carried import carried_alert
from sdc_guard.detect.incidents import QUIET_STEPS, IncidentBook


def alert(
    step: int,
    score: float = 12.0,
    *,
    layer: str = "w",
    threshold: float = 6.0,
    severity: Severity = "suspect",
    **detail: Any,
) -> Alert:
    number = 0 if layer else None
    return Alert(step, "gradient_norm", number, layer, score, threshold, severity, detail)


def evidence(book: IncidentBook) -> dict[str, Any]:
    assert book.open is not None
    told: dict[str, Any] = json.loads(book.open.evidence_json())
    return told


def test_an_incident_names_its_layers_its_ranks_its_peak_and_its_steps() -> None:
    book = IncidentBook()
    book.update(10, [alert(10, -12.0, layer="a"), alert(10, 9.0, layer="b", rank=2)])
    book.update(14, [alert(14, -30.0, layer="b"), alert(14, 3.0, layer="", rank=2)])
    told = evidence(book)
    assert told["layers"] == ["a", "b"]
    assert told["ranks"] == [2]
    assert told["peak"] == 5.0
    assert told["peak_at"] == {"step": 14, "detector": "gradient_norm", "layer": "b"}
    assert (told["first_step"], told["last_step"]) == (10, 14)
    assert told["alerts"] == 4
    assert told["first"] == "step 10: gradient_norm in a"


def test_a_checkpoint_is_told_the_step_once_and_no_advice() -> None:
    found = carried_alert(133, ("exp_avg_sq", 4), "b.weight", {})
    book = IncidentBook()
    book.update(133, [found])
    assert book.open is not None
    assert book.open.first.endswith("call guard.refresh() after that")
    assert book.open.doubt() == (
        "incident open since step 133: carried_digest in b.weight: exp_avg_sq changed between "
        "step 132 and step 133 outside the optimizer (more than one element, or no longer readable)"
    )
    book.update(120, [alert(120)])  # told late
    assert book.open.doubt().startswith("incident open since step 120: step 133: carried_digest")


def test_exact_comparisons_and_what_has_no_number_are_no_peak() -> None:
    book = IncidentBook()
    book.update(0, [alert(0, 1.0, threshold=0.0, severity="proven"), alert(0, math.inf)])
    assert evidence(book)["peak"] is None
    assert "peak_at" not in evidence(book)


def test_what_is_told_late_widens_the_incident_and_does_not_close_it_sooner() -> None:
    book = IncidentBook()
    book.update(100, [alert(100)])
    (wider,) = book.update(85, [alert(85)])
    assert (wider.opened, wider.last) == (85, 100)
    assert book.update(99 + QUIET_STEPS, []) == []
    (closed,) = book.update(100 + QUIET_STEPS, [])
    assert (closed.opened, closed.last, closed.closed) == (85, 100, 100 + QUIET_STEPS)


def test_a_row_is_made_when_it_becomes_twice_as_bad_and_not_for_each_alert() -> None:
    book = IncidentBook()
    rows = [len(book.update(step, [alert(step, 6.0 * 1.1**step)])) for step in range(30)]
    assert rows[0] == 1
    assert sum(rows) == 1 + math.floor(29 * math.log(1.1) / math.log(2))


def test_names_are_bounded() -> None:
    book = IncidentBook()
    rows = [len(book.update(0, [alert(0, layer=f"layer {n}", rank=n)])) for n in range(100)]
    told = evidence(book)
    assert len(told["layers"]) == len(told["ranks"]) == 20
    assert sum(rows) == 20


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),  # steps since the one before
            st.lists(st.tuples(st.floats(-100, 100), st.sampled_from("abc")), max_size=3),
        )
    )
)
def test_every_alert_is_in_one_incident_and_its_peak_is_the_largest(
    steps: list[tuple[int, list[tuple[float, str]]]],
) -> None:
    book, step = IncidentBook(), 0
    newest: dict[int, Any] = {}
    raised: dict[int, list[Alert]] = {}
    for apart, scores in steps:
        step += apart
        alerts = [alert(step, score, layer=layer) for score, layer in scores]
        for incident in book.update(step, alerts):
            newest[incident.number] = incident
        if book.open is not None:
            raised.setdefault(book.open.number, []).extend(alerts)
            newest[book.open.number] = book.open
    assert sum(incident.alerts for incident in newest.values()) == sum(len(x) for _, x in steps)
    for number, incident in newest.items():
        found = raised[number]
        assert incident.peak.times == pytest.approx(max(abs(a.score) / 6 for a in found))
        assert set(incident.layers) == {a.layer_name for a in found}
        assert (incident.opened, incident.last) == (found[0].step, found[-1].step)
        assert incident.closed is None or incident.closed - incident.last >= QUIET_STEPS
