"""Queries against runs whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_made import NAMES, Trace, clean_run, corrupt_run, make_run, watched_run

from app import queries
from app.records import Checkpoint, checkpoint_bracket, status_counts
from sdc_guard.store.reader import RunReader
from sdc_guard.store.sealing import seal_run


def test_coverage_counts_what_was_compared(tmp_path: Path) -> None:
    with RunReader(clean_run(tmp_path / "run")) as reader:
        covered = queries.coverage(reader)
    assert (covered.steps, covered.first, covered.newest) == (40, 1, 40)
    assert covered.newest_time == 1e9 + 40
    assert (covered.ranks, covered.world_size) == (1, 1)
    assert (covered.layers, covered.layers_measured) == (2, 2)
    # two tensors before each of the steps 2 to 40, against those after the step before it
    assert (covered.digests, covered.digest_steps) == (2 * 39, 39)
    assert (covered.shadow_passes, covered.shadow_newest, covered.shadow_unequal) == (4, 40, 0)
    assert (covered.proven, covered.suspected, covered.damaged) == (0, 0, ())


def test_coverage_under_a_digest_budget(tmp_path: Path) -> None:
    with RunReader(watched_run(tmp_path / "run")) as reader:
        covered = queries.coverage(reader)
    assert (covered.digests, covered.digest_steps) == (40, 40)
    assert covered.watched == 40 / (2 * 40)
    with RunReader(clean_run(tmp_path / "whole")) as reader:
        assert queries.coverage(reader).watched is None


def test_coverage_names_what_cannot_be_seen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        for step in (1, 7):
            trace.row("events", step, kind="capture", detail="a compiled step hides its gradients")
        detail = '{"written by forward": ["embed.weight", "b"]}'
        trace.row("events", 1, kind="not carried", detail=detail)
        trace.row("events", 1, kind="start", detail="{}")
    with RunReader(run) as reader:
        assert queries.coverage(reader).blind == (
            "capture: a compiled step hides its gradients",
            "not carried: written by forward embed.weight, b",
        )


def test_a_run_has_ended_when_its_newest_attempt_did(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", starts=(1, 7))
    with Trace(run) as trace:
        trace.steps(1, 5)
        trace.row("events", 6, kind="end", detail="")
    with Trace(run, attempt=2) as trace:
        trace.steps(7, 7)
    with RunReader(run) as reader:
        newest = queries.newest_step(reader)
        assert newest is not None
        assert (newest.step, newest.ended) == (7, False)
        with Trace(run, attempt=2) as trace:
            trace.row("events", 8, kind="end", detail="")
        reader.refresh()
        assert queries.newest_step(reader).ended  # type: ignore[union-attr] # because it was there


def test_coverage_of_nothing(tmp_path: Path) -> None:
    with RunReader(make_run(tmp_path / "run")) as reader:
        covered = queries.coverage(reader)
        assert queries.newest_step(reader) is None
        assert queries.incidents(reader) == []
        assert queries.checkpoints(reader) == []
    assert (covered.steps, covered.newest, covered.ranks, covered.digests) == (0, None, 0, 0)
    assert covered.layers == 2


def test_no_digest_counts_as_compared_over_a_restart_or_a_refresh(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", starts=(1, 11))
    with Trace(run) as trace:
        trace.steps(1, 10)
        trace.row("events", 5, kind="refresh", detail="")
    with Trace(run, attempt=2) as trace:
        trace.steps(11, 12)
    with RunReader(run) as reader:
        covered = queries.coverage(reader)
    assert covered.digest_steps == 8 + 1  # 2 to 10 without 5, and 12
    assert covered.digests == 2 * 9


def test_a_shadow_pass_that_does_not_repeat_is_counted_and_nan_repeats(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.row("shadow", 20, loss=float("nan"), repeat_loss=float("nan"))
        trace.row("shadow", 40, loss=2.0, repeat_loss=2.0000001)
    with RunReader(run) as reader:
        assert queries.coverage(reader).shadow_unequal == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = clean_run(tmp_path / "run")
    broken = next((run / "trace" / "steps" / "rank=00000").glob("seg-*"))
    broken.write_bytes(b"not a segment")
    with RunReader(run) as reader:
        damaged = queries.coverage(reader).damaged
    assert [name for name, _ in damaged] == [f"steps/rank=00000/{broken.name}"]


def test_the_newest_row_of_an_incident_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.incident(5, 1, 5, proven=False)
        for step in (5, 6, 7, 90):
            trace.alert(step, "suspect", text="odd")
        trace.incident(57, 1, 5, proven=False, closed=57)
        trace.incident(90, 2, 90, proven=False)
        trace.incident(95, 2, 90, proven=True)
    with RunReader(run) as reader:
        first, second = queries.incidents(reader)
        alerts = queries.alerts_of(reader, first, limit=2)
    assert (first.opened, first.closed, first.proven, first.alerts) == (5, 57, False, 3)
    assert (second.opened, second.closed, second.proven, second.alerts) == (90, None, True, 1)
    assert (first.key, second.key) == ("5", "90")
    assert [(a.step, a.layer, a.detail["text"]) for a in alerts] == [
        (5, NAMES[1], "odd"),
        (6, NAMES[1], "odd"),
    ]


def test_incidents_of_a_superseded_attempt_are_not_shown(tmp_path: Path) -> None:
    run = corrupt_run(tmp_path / "run")
    make_run(run, starts=(1, 21))
    with Trace(run, attempt=2) as trace:
        trace.steps(21, 30)
    with RunReader(run) as reader:
        assert queries.incidents(reader) == []
        assert queries.coverage(reader).proven == 0
        assert [c.step for c in queries.checkpoints(reader)] == [20]


@pytest.mark.parametrize("sealed", [False, True], ids=["segments", "seals"])
def test_the_alert_of_a_flipped_bit(tmp_path: Path, sealed: bool) -> None:
    run = corrupt_run(tmp_path / "run")
    if sealed:
        assert seal_run(run, at_least=1)
    with RunReader(run) as reader:
        (incident,) = queries.incidents(reader)
        (alert,) = queries.alerts_of(reader, incident, limit=10)
    assert (alert.step, alert.layer, alert.severity) == (27, NAMES[1], "proven")
    assert (alert.detail["index"], alert.detail["bits"]) == (3, [19, 30])


def test_detail_that_is_no_json_object_costs_only_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        for step, detail in enumerate(("{", "[1]", None, '{"text": "kept"}'), 1):
            trace.row("alerts", step, detector="d", severity="suspect", detail=detail)
        trace.row("incidents", 1, incident=1, opened=1, verdict=None, evidence="{broken")
    with RunReader(run) as reader:
        (incident,) = queries.incidents(reader)
        alerts = queries.alerts_of(reader, incident, limit=10)
    assert (incident.proven, incident.verdict) == (False, "undetermined")
    assert [a.detail for a in alerts] == [{}, {}, {}, {"text": "kept"}]


def test_of_several_rows_about_a_checkpoint_the_most_definite_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        for status in ("untested", "clean"):
            trace.checkpoint(10, status)
        trace.checkpoint(20, "corrupt", "bytes differ")
        trace.checkpoint(20, "clean")
        trace.checkpoint(30, "a status of tomorrow")
    with RunReader(run) as reader:
        found = queries.checkpoints(reader)
    assert [(c.step, c.status, c.reason) for c in found] == [
        (10, "clean", ""),
        (20, "corrupt", "bytes differ"),
        (30, "untested", ""),
    ]
    assert found[0].bytes == 10_065_775
    assert status_counts(found) == {"clean": 1, "corrupt": 1, "untested": 1}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({20: "clean", 40: "suspect", 60: "suspect"}, (20, 40)),
        ({20: "clean", 40: "untested", 60: "corrupt"}, (20, 60)),
        ({20: "suspect", 40: "clean"}, (None, 20)),
        ({20: "clean", 40: "clean"}, None),
        ({}, None),
    ],
)
def test_bracket_of_checkpoints(statuses: dict[int, str], expected: object) -> None:
    found = [Checkpoint(step, "", "", 1, status, "") for step, status in statuses.items()]
    assert checkpoint_bracket(found) == expected


def test_facts_of_a_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        with Trace(run, rank=rank) as trace:
            trace.steps(9, 10)
    with RunReader(run) as reader:
        facts = queries.step_facts(reader, 10)
        assert queries.step_facts(reader, 11).empty
    assert facts["rank"].to_list() == [0, 1]
    assert facts["loss"].to_list() == [1.1, 1.1]
    assert facts["loss_scale"].isna().all()
    assert facts["shadow_loss"].to_list() == [2.0, 2.0]
