"""When did it start? Loss, norms, alerts and checkpoints over the steps."""

import pandas as pd
import streamlit as st

from app import (
    address,
    answer_box,
    answers,
    charts,
    drawing,
    layer_box,
    navigation,
    queries,
    records,
    sessions,
)
from app import series as curves
from app.palette import palette_of
from app.source import current_run, current_source
from app.wording import (
    bracket_text,
    count,
    number_text,
    plain,
    size_text,
    span_text,
    status_text,
)
from sdc_guard.lake.location import is_lake
from sdc_guard.store.trace_reader import TraceReader

_WINDOWS = {"whole run": None, "± 500 steps": 500, "± 50 steps": 50}
_CHECKPOINTS_SHOWN = 200
_RANGE = "Of the losses of several ranks the curve spans the smallest and the largest."


def controls(reader: TraceReader) -> tuple[int | None, str | None, int | None]:
    """The selected step, the layer, and how many steps around it are shown."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = address.number("Step", "step")
        names = queries.layer_names(reader)
        layer = layer_box.control(reader, names)
        window = None
        if step is not None:
            chosen = st.segmented_control("Show", list(_WINDOWS), default="whole run", key="window")
            window = _WINDOWS[chosen or "whole run"]
    if said := layer_box.note(names):
        st.caption(plain(said))
    return step, layer, window


def bracket(kept: list[records.Checkpoint], results: list[sessions.SessionResult]):
    """The band to draw and the sentence that says where it comes from."""
    result = sessions.newest_bracket(results)
    if result is not None:
        band = (result.last_clean, result.first_corrupt)
        return band, f"Band {bracket_text(*band)}: found by sdc-bisect session {result.session}."
    band = records.checkpoint_bracket(kept)
    if band is None:
        return None, ""
    return band, f"Band {bracket_text(*band)}: last clean to first suspect or corrupt checkpoint."


def panels(reader: TraceReader, first: int, last: int, layer: str | None):
    """The panels to draw, and what is to be said about their curves."""
    loss = curves.series(reader, "loss", first, last)
    shadow = curves.series(reader, "shadow", first, last)
    norm = curves.series(reader, "grad_norm", first, last, log=True)
    found = [
        charts.Panel("loss", {"training loss": loss, "shadow loss": shadow}, height=210),
        charts.Panel("gradient norm (log)", {"gradient norm": norm}, log=True),
    ]
    if layer is not None:
        of_layer = curves.series(reader, "layer", first, last, layer=layer, log=True)
        found.append(charts.Panel("layer's norm (log)", {layer: of_layer}, log=True))
    lines = {name: line for panel in found for name, line in panel.lines.items()}
    return [panel for panel in found if any(not x.empty for x in panel.lines.values())], lines


def notes(lines: dict[str, curves.Series]) -> list[str]:
    said = []
    for name, line in lines.items():
        if line.empty:
            said.append(f"No {name} is recorded here.")
        said += [
            f"{name}: {count(number, 'value')} {what}, the first at step "
            f"{line.marks[line.marks['what'] == what]['step'].min():,}; marked ✖ at the top edge."
            for what, number in line.undrawn.items()
        ]
    width = max(line.width for line in lines.values())
    if width > 1:
        said.append(f"Drawn are the smallest and the largest value of every {width:,} steps.")
    return said


def step_table(reader: TraceReader, step: int, known: tuple[int, int]) -> None:
    facts = queries.step_facts(reader, step)
    if facts.empty:
        st.info(f"Step {step:,} is not recorded; recorded is {span_text(*known)}.")
        return
    st.subheader(f"Step {step:,}", anchor=False)
    columns = {
        "rank": [str(x) for x in facts["rank"]],
        "attempt": [str(x) for x in facts["attempt"]],
        "loss": _numbers(facts["loss"]),
        "shadow loss": _numbers(facts["shadow_loss"]),
        "gradient norm": _numbers(facts["grad_norm"]),
        "learning rate": _numbers(facts["lr"]),
        "duration (s)": _numbers(facts["step_seconds"]),
        "tokens": _numbers(facts["tokens"]),
    }
    if facts["loss_scale"].notna().any():
        columns["loss scale"] = _numbers(facts["loss_scale"])
    skipped = [not pd.isna(x) and bool(x) for x in facts["skipped"]]
    if any(skipped):
        columns["update"] = ["skipped" if x else "applied" for x in skipped]
    st.table(columns, hide_index=True)


def _numbers(column: pd.Series) -> list[str]:
    return ["–" if pd.isna(x) else plain(number_text(float(x))) for x in column]


def checkpoint_table(kept: list[records.Checkpoint], step: int | None) -> None:
    """All of them; the one that is chosen is the step that is looked at."""
    st.subheader("Checkpoints", anchor=False)
    if not kept:
        st.write("None was recorded: there is nothing to go back to.")
        return
    shown = kept[: -_CHECKPOINTS_SHOWN - 1 : -1]  # the newest first: it is asked for most
    steps = [x.step for x in shown]
    key = f"checkpoints {current_run().name} {len(kept)} {step if step in steps else ''}"
    st.dataframe(
        {
            "step": [f"{x.step:,}" for x in shown],
            "status": [status_text(x) for x in shown],
            "size": [size_text(x.bytes) for x in shown],
            "folder": [x.path for x in shown],
            "reason": [x.reason for x in shown],
        },
        hide_index=True,
        key=key,
        on_select=lambda: pick(key, steps),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [steps.index(step)] if step in steps else []}},
        column_config={"reason": st.column_config.TextColumn(width="large")},
    )
    if is_lake(current_source().location):
        st.caption("As they were recorded: their files lie in the run's folder, not in the lake.")
    if step in steps:
        navigation.onward("timeline", step)
    if len(kept) > len(shown):
        st.caption(f"The newest {len(shown)} of {count(len(kept), 'checkpoint')}.")


def pick(key: str, steps: list[int]) -> None:
    """Look at the step of the checkpoint that was chosen; at none where it was let go."""
    rows = st.session_state[key]["selection"]["rows"]
    address.put(step=steps[rows[0]] if rows and rows[0] < len(steps) else None)


def show() -> None:
    reader = current_source().reader()
    known = curves.span(reader)
    if known is None:
        st.info("No step is recorded yet: the page shows the first one as soon as it is written.")
        return
    kept = queries.checkpoints(reader)
    results = sessions.session_results(reader.run, len(reader.run_file.attempts))
    said = answers.when(queries.incidents(reader), kept, results)
    answer_box.box(said.state, said.sentence, said.reasons, signed=said.state != "unknown")
    step, layer, window = controls(reader)
    first, last = known
    if step is not None and window is not None:
        first, last = max(first, step - window), min(last, step + window)
    if first > last:
        first, last = known  # the step lies far outside the run
    band, source_of_band = bracket(kept, results)
    drawn, lines = panels(reader, first, last, layer)
    overlay = charts.Overlay(
        first,
        last,
        band,
        step,
        curves.alert_marks(reader, first, last),
        curves.event_marks(reader, first, last),
    )
    palette = palette_of(st.context.theme.type)
    with st.container(gap=None):
        for place, chart in enumerate(charts.timeline(drawn, overlay, kept, palette)):
            drawing.draw(chart, f"timeline {place}")
    said = [
        source_of_band,
        _RANGE if reader.run_file.world_size > 1 else "",
        *notes(lines),
        "" if step is None else "The broad violet line is the step.",
    ]
    st.caption(" ".join(plain(text) for text in said if text))
    if step is not None:
        step_table(reader, step, known)
        navigation.onward("timeline", step)
    checkpoint_table(kept, step)


show()
