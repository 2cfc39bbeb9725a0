"""Which layer, which rank, which host? Layers over steps by how unusual they are."""

from dataclasses import astuple

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import (
    address,
    answer_box,
    answers,
    drawing,
    layer_box,
    navigation,
    proof,
    queries,
    sessions,
)
from app.follow import follow
from app.locating import (
    attempt_choice,
    heat_cells,
    heatmap,
    locate_state,
    queries_cell,
    queries_locate,
)
from app.locating.cell_detail import detail
from app.locating.comparison import comparison
from app.locating.layer_rows import LayerRow, row_of, rows_of
from app.locating.scans import (
    Scan,
    Window,
    heatmap_cells,
    kept_cells,
    kept_extent,
    scans_of,
    window_in,
)
from app.locating.statistics_sql import STATISTICS, Statistic
from app.palette import palette_of
from app.records import Incident
from app.source import current_source
from app.wording import count, plain, span_text
from sdc_guard.store.trace_reader import TraceReader

_CHART = "locate heatmap"
_ALERTS = 50  # of an incident, looked through for the one to show
_SIGNS = (("proven", "◆", "a proven alert"), ("statistical", "▼", "an alert from statistics"))
_SHOW_CELL, _SHOW_STEP = "Show this cell", "Show this step"


def controls(
    reader: TraceReader, names: list[str], newest: TraceReader
) -> tuple[int | None, str | None, int | None, Statistic]:
    """The selected step, layer and rank, and the statistic."""
    ranks = ["all", *map(str, range(reader.run_file.world_size))]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = address.number("Step", "step")
        layer = layer_box.control(newest, names)
        rank = address.choice("Rank", "rank", ranks, width=100)
        name = address.choice("Statistic", "statistic", list(STATISTICS), width=140)
        attempt_choice.control(newest)
    for said in filter(None, (layer_box.note(names), attempt_choice.note(reader, newest))):
        st.caption(plain(said))
    of_rank = None if rank in (None, "all") else int(rank)
    return step, layer, of_rank, STATISTICS[name or "norm"]


def window_of(whole: Scan, layers: int) -> Window:
    """What the address asks to be shown."""
    steps = locate_state.span_of(
        st.query_params.get("steps"), whole.extent.first, whole.extent.last
    )
    places = locate_state.span_of(st.query_params.get("layers"), 0, layers - 1)
    return window_in(whole, steps, places, layers)


def zoomed(window: Window, whole: Scan, layers: int) -> None:
    """What is shown, with a way back to the whole."""
    steps = (window.first, window.last) == (whole.extent.first, whole.extent.last)
    every = (window.low, window.high) == (0, layers - 1)
    if steps and every:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.write(
            f"Shown: steps {span_text(window.first, window.last)}, "
            f"{count(window.high - window.low + 1, 'layer')} of {layers:,}."
        )
        if not steps:
            st.button("Whole run", on_click=_drop, args=("steps",), icon=":material/zoom_out:")
        if not every:
            st.button("All layers", on_click=_drop, args=("layers",), icon=":material/zoom_out:")


def _drop(name: str) -> None:
    address.put(**{name: None})


def draw(
    cells: pd.DataFrame,
    reader: TraceReader,
    window: Window,
    whole: Scan,
    rows: list[LayerRow],
    rank: int | None,
    looked_at: tuple[int | None, str | None],
) -> set[str]:
    """The chart; which sorts of alerts are in it."""
    layers = reader.run_file.layers
    places = {layer.id: place for place, layer in enumerate(layers)}
    span = (window.first, window.last, window.width)
    alerts = queries_cell.alert_cells(reader, *span, rank).to_pandas()
    row = [row_of(rows, places.get(layer, -1)) for layer in alerts["layer"]]
    alerts = alerts.assign(row=row).dropna(subset="row").astype({"row": int})
    shown = heat_cells.drawn(cells, alerts, rows, span)
    chart = heatmap.heatmap(
        shown, palette_of(st.context.theme.type), chosen_cell(*looked_at, window, rows, layers)
    )

    def on_click() -> None:
        picked = st.session_state[_CHART]["selection"].get(heatmap.SELECTION) or []
        hit = shown.cells
        if picked:
            hit = hit[(hit["row"] == picked[0].get("row")) & (hit["bin"] == picked[0].get("bin"))]
        if not picked or hit.empty:
            return
        cell = hit.iloc[0]
        select(
            locate_state.clicked(
                rows[int(cell["row"])],
                int(cell["step"]),
                places[int(cell["layer"])],
                window,
                (whole.extent.first, whole.extent.last),
            ),
            [layer.name for layer in layers],
        )

    drawing.draw(chart, _CHART, on_click)
    return set(shown.alerts["sort"])


def chosen_cell(
    step: int | None, name: str | None, window: Window, rows: list[LayerRow], layers
) -> tuple[int, int] | None:
    """Row and bin of the selected step and layer, if they are among what is shown."""
    place = locate_state.place_of([layer.name for layer in layers], name)
    row = None if place is None else row_of(rows, place)
    if step is None or row is None or not window.first <= step <= window.last:
        return None
    return row, step // window.width


def select(asked: locate_state.Clicked, names: list[str]) -> None:
    """Put what was clicked into the address and the controls."""
    spans = {"steps": asked.steps, "layers": asked.layers}
    zoomed_in = {key: locate_state.span_text(span) for key, span in spans.items() if span}
    address.put(step=asked.step, layer=names[asked.layer], **zoomed_in)
    st.session_state["clicked"] = True


def notes(reader: TraceReader, window: Window, cells: pd.DataFrame, sorts: set[str]) -> list[str]:
    """What is to be said below the heatmap."""
    coarse = window.width > 1
    of_steps = f" of {window.width:,} steps" if coarse else ""
    what = "to come closer" if coarse else "for its detail"
    said = [f"{sign}: {text}." for sort, sign, text in _SIGNS if sort in sorts]
    said.append(f"A cell shows the value with the greatest |z|{of_steps}; click on it {what}.")
    if (cells["bad"] > 0).any():
        said.append("✕: values that are not finite.")
    if cells["unjudged"].any():
        said.append("Grey: nothing to judge by (fewer than 8 values, or mostly zeros).")
    lost = [path for path in reader.damaged if "layers" in path.parts]
    if lost:
        said.append(
            f"{count(len(lost), 'file')} of the trace could not be read: cells are missing."
        )
    if reader.run_file.world_size == 1:
        said.append("One rank: values are compared with their own steps alone.")
    return said


def about_z(statistic: Statistic, whole: Scan) -> str:
    """How the colours are computed, for whoever asks."""
    share = "" if whole.by.share == 1 else f", of which one in {whole.by.share} counts"
    return (
        f"z = (x − median) / (1.4826 · MAD + s₀), x the {statistic.meaning}; median and MAD are of "
        f"the same layer, rank and scope in the same {whole.by.length:,} steps{share}; "
        f"s₀ = {statistic.floor}. Colours end at ±8. "
        "The sensor's scores, which alerts tell, also leave out what all layers did in a step."
    )


def answer(reader: TraceReader, *, is_newest: bool) -> None:
    """Which layer and rank, by a replay or else by the alerts; and the way to that cell.

    Args:
        reader: of the attempt that is looked at.
        is_newest: whether that is the newest one; sessions are about the run as it is now.
    """
    found = queries.incidents(reader)
    key = st.query_params.get("incident")
    known = proven(reader, next((x for x in found if x.key == key), None)) if is_newest else None
    if known is not None:
        answer_box.box(known.said.state, known.said.sentence, known.said.reasons)
        drawn = known.layer in [layer.name for layer in reader.run_file.layers]
        layer, label = (known.layer, _SHOW_CELL) if drawn else (None, _SHOW_STEP)
        navigation.link("locate", label, step=known.step, layer=layer, rank=known.rank)
        return
    incident = answers.chosen(found, key)
    alerts = [] if incident is None else queries.alerts_of(reader, incident, _ALERTS)
    said = answers.where(incident, alerts)
    answer_box.box(said.state, said.sentence, said.reasons, signed=said.state != "unknown")
    named = answers.named_alert(alerts)
    if named is not None:
        rank = answers.rank_of(named)
        navigation.link("locate", _SHOW_CELL, step=named.step, layer=named.layer, rank=rank)


def proven(reader: TraceReader, asked_for: Incident | None) -> proof.Proof | None:
    """What the newest replay proved, unless an incident is asked for that began before."""
    attempts = len(reader.run_file.attempts)
    results = sessions.session_results(reader.run, attempts)
    found = proof.newest_proof(results, asked_for)
    if found is None:
        return None
    dtypes = {layer.name: layer.dtype for layer in reader.run_file.named}
    return proof.proof_of(reader.run, found, dtypes, attempts)


def show() -> None:
    source = current_source()
    newest = source.reader()
    reader = attempt_choice.reader_of(source, newest)
    layers = reader.run_file.layers
    names = [layer.name for layer in layers]
    answer(reader, is_newest=reader is newest)
    step, layer, rank, statistic = controls(reader, names, newest)
    version = st.session_state.get("shown", source.version())
    extent = kept_extent(str(source.location), reader.attempt, version, reader)
    if extent is None or not names:
        st.info(
            "No statistics of layers are recorded: the guard saw no gradients yet, or the files "
            "with them cannot be read. Incidents says what the guard cannot see."
        )
        return
    scans = scans_of(str(source.run))
    found = scans.of(reader, version, statistic, rows=extent.rows)
    if found is None or found.version != version:
        follow(lambda: scans.news(reader, version, statistic, found))
    whole = None if found is None else found.value
    above, about = st.container(), st.container()
    looked_at = step, layer
    # after a click its detail comes first: the heatmap is there already
    parts = [
        lambda: map_of(reader, statistic, whole, extent, rank, looked_at, above),
        lambda: chosen_detail(reader, statistic, whole, rank, looked_at, about),
    ]
    for part in reversed(parts) if st.session_state.pop("clicked", False) else parts:
        part()
    by_number = {one.id: one.name for one in layers}
    comparison(reader, by_number, (extent.first, extent.last), step)


def map_of(
    reader: TraceReader,
    statistic: Statistic,
    whole: Scan | None,
    extent: queries_locate.Extent,
    rank: int | None,
    looked_at: tuple[int | None, str | None],
    place: DeltaGenerator,
) -> None:
    """The heatmap, or what is being read for it."""
    with place:
        if whole is None:
            st.info(
                f"Reading the {statistic.name} of {count(extent.rows, 'row')} for the heatmap, "
                "once; it is shown here when it is there.",
                icon=":material/hourglass_top:",
            )
            return
        layers = reader.run_file.layers
        names = [layer.name for layer in layers]
        window = window_of(whole, len(names))
        zoomed(window, whole, len(names))
        rows = rows_of(names, window.low, window.high)
        ids = [layer.id for layer in layers]
        cells = kept_cells(
            whole.made,
            statistic.name,
            astuple(window),
            rank,
            lambda: heat_cells.described(
                heatmap_cells(reader, statistic, whole, window, rows, ids, rank),
                rows,
                dict(zip(ids, names, strict=True)),
                window.width,
            ),
        )
        if cells.empty:
            st.info(f"No {statistic.name} is recorded in these steps, layers and ranks.")
            return
        sorts = draw(cells, reader, window, whole, rows, rank, looked_at)
        said = notes(reader, window, cells, sorts)
        if whole.extent.last != extent.last:
            said.insert(0, f"As of step {whole.extent.last:,}: the run has grown since.")
        st.caption(plain(" ".join(said)), help=plain(about_z(statistic, whole)))


def chosen_detail(
    reader: TraceReader,
    statistic: Statistic,
    whole: Scan | None,
    rank: int | None,
    looked_at: tuple[int | None, str | None],
    place: DeltaGenerator,
) -> None:
    """The detail of the layer and step that are selected."""
    layers = reader.run_file.layers
    step, name = looked_at
    at = locate_state.place_of([layer.name for layer in layers], name)
    with place:
        if step is None or at is None:
            st.info("Click on a cell, or give step and layer, to see it among its ranks.")
        else:
            detail(reader, statistic, whole, (layers[at].id, layers[at].name), step, rank)


show()
