"""Is there an incident? What is known of it, and what was checked."""

from urllib.parse import urlencode

import duckdb
import streamlit as st

from app import (
    address,
    answer_box,
    answers,
    counts,
    navigation,
    overview,
    queries,
    records,
    sessions,
)
from app.answers import rank_of
from app.fleet_table import fleet_table
from app.searching.search_answer import answer_table
from app.source import current_run, current_source
from app.verdict import judge
from app.wording import (
    bracket_text,
    count,
    place_text,
    plain,
    score_text,
    span_text,
    utc_text,
)
from forensics.watched import percent
from sdc_guard.errors import SdcGuardError
from sdc_guard.lake.location import is_lake
from sdc_guard.store.trace_reader import TraceReader

_ALERTS_SHOWN = 50
_INCIDENTS_SHOWN = 100
_COUNTING = "being counted: the run is large, and the page shows it when it is there"


def incident_table(
    found: list[records.Incident], results: list[sessions.SessionResult]
) -> records.Incident | None:
    """All incidents; the row that is chosen is looked at, at first that of the address."""
    st.subheader("Incidents", anchor=False)
    if not found:
        st.write("None was opened.")
        return None
    chosen = answers.chosen(found, st.query_params.get("incident"))
    assert chosen is not None  # there is at least one
    shown = found[:_INCIDENTS_SHOWN]
    if chosen not in shown:
        shown = [*shown, chosen]
    # a name of its own for each state of the table: a row that was chosen must not become another
    key = f"incidents {current_run().name} {len(shown)}"
    st.dataframe(
        {
            "opened at step": [f"{x.opened:,}" for x in shown],
            "closed at step": ["open" if x.closed is None else f"{x.closed:,}" for x in shown],
            "evidence": ["✖ proven" if x.proven else "▲ statistics only" for x in shown],
            "verdict": [verdict_text(x, results) for x in shown],
            "detectors": [", ".join(map(str, x.evidence.get("detectors", []))) for x in shown],
            "alerts": [x.alerts for x in shown],
            "told by rank": [x.rank for x in shown],
            "first alert": [str(x.evidence.get("first", "")) for x in shown],
        },
        hide_index=True,
        key=key,
        on_select=lambda: pick(key, [x.key for x in shown]),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [shown.index(chosen)]}},
        column_config={"first alert": st.column_config.TextColumn(width="large")},
    )
    if len(found) > len(shown):
        st.caption(f"The first {len(shown)} of {count(len(found), 'incident')}.")
    return chosen


def pick(key: str, keys: list[str]) -> None:
    """Put the incident of the row that was chosen into the address; none where it was let go."""
    rows = st.session_state[key]["selection"]["rows"]
    address.put(incident=keys[rows[0]] if rows and rows[0] < len(keys) else None)


def verdict_text(incident: records.Incident, results: list[sessions.SessionResult]) -> str:
    """What a replay found of it, or else what the guard knew."""
    result = sessions.verdict_on(results, incident.opened)
    if result is None:
        return incident.verdict
    return f"{result.verdict} (session {result.session})"


def incident_detail(reader: TraceReader, incident: records.Incident) -> None:
    st.subheader(f"Alerts of the incident opened at step {incident.opened:,}", anchor=False)
    alerts = queries.alerts_of(reader, incident, _ALERTS_SHOWN)
    if not alerts:
        st.write("No alert of it can be read.")
        return
    columns = {
        "step": [f"{a.step:,}" for a in alerts],
        "rank": [_rank(a) for a in alerts] if reader.run_file.world_size > 1 else [],
        "layer": [cell_link(incident, a) for a in alerts],
        "detector": [plain(a.detector) for a in alerts],
        "place": [plain(place_text(a.detail)) for a in alerts],
        "before → after": [_change(a.detail) for a in alerts],
        "score": [score_text(a.severity, a.score, a.threshold) for a in alerts],
        "text": [plain(a.detail.get("text", "")) for a in alerts],
    }
    # a statistic names no element: columns that say nothing here are left out
    st.table({name: column for name, column in columns.items() if any(column)}, hide_index=True)
    if incident.alerts > len(alerts):
        st.caption(f"The first {len(alerts)} of {count(incident.alerts, 'alert')}.")


def cell_link(incident: records.Incident, alert: records.Alert) -> str:
    """The alert's layer, with a link to its cell on Locate."""
    if not alert.layer:
        return ""
    asked = navigation.kept(
        incident=incident.key, step=alert.step, layer=alert.layer, rank=rank_of(alert)
    )
    return f"[{plain(alert.layer)}](locate?{urlencode(asked)})"


def _rank(alert: records.Alert) -> str:
    rank = rank_of(alert)
    return "not known" if rank is None else str(rank)


def _change(detail: dict[str, object]) -> str:
    if "before" not in detail or "after" not in detail:
        return ""
    return f"{plain(detail['before'])} → {plain(detail['after'])}"


def bisect_results(found: list[sessions.SessionResult]) -> None:
    if not found:
        return
    st.subheader("Bisection", anchor=False)
    for result in reversed(found):
        name = f"Session {plain(result.session)}"
        if not result.readable:
            st.write(f"{name}: its result.json cannot be read.")
            continue
        when = "" if result.finished is None else f"Finished {utc_text(result.finished)}."
        note = "" if result.current else "It is about the run before it was started again."
        said = (plain(text) for text in (result.sentence, when, note) if text)
        st.write(f"{name}: {' '.join(said)}")
        differing = len(result.tensors) + result.more_tensors
        if result.kind == sessions.BATCH and result.tensors:
            left = count(differing, "tensor")
            st.caption(f"What the step left differs with its batch: {left}.")
        elif result.tensors:
            st.table(answer_table(result.tensors), hide_index=True)
            if result.more_tensors:
                st.caption(f"The first {len(result.tensors)} of {count(differing, 'tensor')}.")


def share_text(covered: records.Coverage) -> str:
    """How much of the state that is, under a digest budget."""
    if covered.watched is None:
        return ""
    return f": {percent(covered.watched)} of the state's transitions were compared"


def _short(reason: str) -> str:
    """Without the path of the run: a table cuts what has no place to break."""
    return reason.replace(f"{current_source().run}/", "")


def coverage_table(covered: records.Coverage, found: list[records.Checkpoint]) -> None:
    st.subheader("What was checked", anchor=False)
    kinds = ", ".join(f"{n} {status}" for status, n in records.status_counts(found).items())
    bracket = records.checkpoint_bracket(found)
    deleted = sum(checkpoint.deleted for checkpoint in found)
    upto = f" to step {covered.counted_to:,}" if covered.lags else ""
    rows = {
        "Steps recorded": f"{covered.steps:,} ({span_text(covered.first, covered.newest)}), "
        f"by {covered.ranks} of {count(covered.world_size, 'rank')}",
        "Parameters and optimizer state between steps": (
            f"{count(covered.digests, 'digest')} compared exactly, over "
            f"{count(covered.digest_steps, 'step')}" + upto + share_text(covered)
        )
        if covered.is_counted
        else _COUNTING,
        "Gradients": f"{covered.layers_measured:,} of {count(covered.layers, 'layer')} measured: "
        "large changes show, small ones do not"
        if covered.is_counted
        else _COUNTING,
        "Shadow loss": "no pass"
        if covered.shadow_newest is None
        else f"{count(covered.shadow_passes, 'pass', 'passes')}, the newest at step "
        f"{covered.shadow_newest:,}; {covered.shadow_unequal} did not repeat bit for bit",
        "Checkpoints": (kinds or "none")
        + (f"; {deleted} of them deleted since" if deleted else "")
        + (f"; first trouble in {bracket_text(*bracket)}" if bracket else ""),
        "Files that could not be opened": "not known: what cannot be read is not uploaded"
        if is_lake(current_source().location)
        else "; ".join(f"{n} ({_short(r)})" for n, r in covered.damaged) or "none",
    }
    if covered.blind:
        rows["Not seen by the guard"] = "; ".join(covered.blind)
    st.table(
        {"check": list(rows), "how much": [plain(text) for text in rows.values()]},
        hide_index=True,
        width="content",
    )
    st.caption(
        "Not seen by these checks: a wrong gradient or activation that is not unusually large "
        "(`sdc-bisect verify` replays the steps and compares every bit), and a checkpoint's file "
        "that was damaged after it was saved (`sdc-bisect scan` reads every byte)."
    )


def about_the_run(
    reader: TraceReader,
    covered: records.Coverage,
    found: list[records.Incident],
    kept: list[records.Checkpoint],
    results: list[sessions.SessionResult],
) -> None:
    """The first screen: is there an incident, and where to go on."""
    verdict = judge(covered, found, kept, results)
    answer_box.box(verdict.state, verdict.headline, verdict.reasons)
    overview.numbers(covered, found, kept, results)
    bad = sessions.first_bad(found, results)
    overview.next_steps(bad, queries.layer_of_alert(reader, bad), verdict)


def show() -> None:
    top, runs, rest = st.container(), st.container(), st.container()
    try:
        source = current_source()
        reader = source.reader()
        version = st.session_state.get("shown", source.version())
        covered = counts.coverage(reader, str(source.location), version)
        found, kept = queries.incidents(reader), queries.checkpoints(reader)
        results = sessions.session_results(source.run, len(reader.run_file.attempts))
        with top:
            about_the_run(reader, covered, found, kept, results)
    except (SdcGuardError, duckdb.Error, OSError):
        with runs:
            fleet_table()  # the way to the other runs
        raise
    with runs:
        fleet_table()
    with rest:
        incident = incident_table(found, results)
        if incident is not None:
            incident_detail(reader, incident)
        bisect_results(results)
        coverage_table(covered, kept)


show()
