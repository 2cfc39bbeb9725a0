"""Changed digests and incidents against hand-made cases whose right answer is known."""

from __future__ import annotations

import numpy as np

from sdc_guard.detect.alert import Alert
from sdc_guard.detect.carried import DigestTable, changed
from sdc_guard.detect.incidents import QUIET_STEPS, IncidentBook


def test_changed_names_the_tensors_that_differ_and_passes_over_new_ones() -> None:
    old = DigestTable((("param", 0), ("param", 1)), np.array([[1, 2, 3], [4, 5, 6]]))
    new = DigestTable(
        (("param", 1), ("param", 0), ("exp_avg", 0)), np.array([[4, 5, 7], [1, 2, 3], [9, 9, 9]])
    )
    assert changed(old, new) == [(("param", 1), 1, 0)]
    assert changed(old, old) == []


def alert(step: int, severity: str = "suspect") -> Alert:
    return Alert(step, "gradient_norm", 0, "w", 40.0, 32.0, severity)  # type: ignore[arg-type] # because a plain str is enough here


def test_a_statistical_incident_opens_grows_and_closes() -> None:
    book = IncidentBook()
    assert [incident.opened for incident in book.update(10, [alert(10)])] == [10]
    assert book.update(11, [alert(11)]) == []  # the same kind again is no news
    for step in range(12, 11 + QUIET_STEPS):
        assert book.update(step, []) == []
    (closed,) = book.update(11 + QUIET_STEPS, [])
    assert (closed.number, closed.closed, closed.alerts, closed.proven) == (1, 61, 2, False)
    assert book.open is None
    assert book.update(200, [alert(200)])[0].number == 2


def test_a_proven_incident_does_not_close_by_quiet_and_claims_no_cause() -> None:
    book = IncidentBook()
    book.update(10, [alert(10)])
    (grown,) = book.update(11, [alert(11, "proven")])
    assert grown.proven
    assert grown.verdict == "undetermined"
    for step in range(12, 500):
        assert book.update(step, []) == []
    assert book.open is not None


def audit_alert(step: int, verdict: str, severity: str) -> Alert:
    return Alert(step, "step_audit", None, "", 1.0, 0.0, severity, {"verdict": verdict})


def test_an_audit_raises_the_verdict_of_an_incident() -> None:
    book = IncidentBook()
    (opened,) = book.update(5, [Alert(5, "gradient_norm", 0, "w", 60.0, 50.0, "suspect")])
    assert opened.verdict == "undetermined"
    (judged,) = book.update(5, [audit_alert(5, "data or software", "suspect")])
    assert judged.verdict == "data or software"
    assert not judged.proven
    (newer,) = book.update(6, [audit_alert(6, "intermittent", "proven")])
    assert newer.verdict == "intermittent"
    assert book.update(7, [audit_alert(7, "data or software", "suspect")]) == []
    assert book.update(8, [audit_alert(8, "undetermined", "suspect")]) == []


def test_an_audit_does_not_explain_what_it_did_not_see() -> None:
    book = IncidentBook()
    book.update(5, [Alert(5, "carried_digest", 0, "w", 1.0, 0.0, "proven")])
    book.update(6, [audit_alert(6, "data or software", "suspect")])
    assert book.open is not None
    assert book.open.verdict == "undetermined"
