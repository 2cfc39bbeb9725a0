"""The page Locate in every state, through Streamlit's own test runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hand_made import NAMES, Trace, corrupt_run, make_run
from paged import page_of, said
from streamlit.testing.v1 import AppTest

from sdc_guard.store.run_file import Attempt, Layer, RunFile

Open = Callable[..., AppTest]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Open:
    """open_page(run, **query): the page as it is after it has rendered."""
    return lambda run, **query: page_of(monkeypatch, "locate", run, **query)


def charts(app: AppTest) -> int:
    return len(app.get("vega_lite_chart"))


def ranks_run(folder: Path, ranks: int = 4, spike: float = 1_000.0) -> Path:
    """Steps 0 to 59 of `ranks` ranks and two layers; rank 2's norm of layer 1 is off at step 40."""
    run = make_run(folder, world_size=ranks)
    for rank in range(ranks):
        with Trace(run, rank=rank) as trace:
            for layer in (0, 1):
                norm = 1 + 0.1 * np.cos(np.arange(60) * (1 + layer + rank))
                if (rank, layer) == (min(2, ranks - 1), 1):
                    norm[40] *= spike
                trace.rows(
                    "layers",
                    np.arange(60),
                    layer=layer,
                    norm=norm,
                    max_abs=norm / 2,
                    mean_abs=norm / 9,
                    nonfinite=(~np.isfinite(norm)).astype(np.int64),
                    zeros=0,
                    scope="local",
                    copies=1,
                )
            trace.row("steps", 59, time=1e9, loss=1.0)
    return run


def test_a_deep_link_to_a_cell_shows_its_ranks(tmp_path: Path, open_page: Open) -> None:
    app = open_page(ranks_run(tmp_path / "run"), step="40", layer=NAMES[1])
    text = said(app)
    assert f"{NAMES[1]} at step 40" in text
    assert "norm of rank 2, local" in text
    table = app.table[0].value
    assert [str(x) for x in table["rank"]] == ["0", "1", "2", "3"]
    own = [float(str(x).replace("\\", "").replace("−", "-")) for x in table["z of norm, own steps"]]
    over = [
        float(str(x).replace("\\", "").replace("−", "-")) for x in table["z of norm, over ranks"]
    ]
    assert max(range(4), key=lambda n: own[n]) == max(range(4), key=lambda n: over[n]) == 2
    assert own[2] > 8
    assert over[2] > 8
    assert "Selected: 40; baseline: 0 to 39, 40 steps." in text
    assert "d = (median of the selection − median of the baseline)" in text
    assert charts(app) == 3


def test_a_rank_in_the_address_is_the_one_that_is_shown(tmp_path: Path, open_page: Open) -> None:
    app = open_page(ranks_run(tmp_path / "run"), step="40", layer=NAMES[1], rank="1")
    assert "norm of rank 1, local" in said(app)


def test_every_rank_has_its_host_and_a_name_does_no_harm(tmp_path: Path, open_page: Open) -> None:
    run = ranks_run(tmp_path / "run", 3)
    app = open_page(run, step="40", layer=NAMES[1])
    assert set(app.table[0].value["host"]) == {"not recorded"}
    assert "recorded before ranks told their host" in said(app)
    for rank, host in ((0, "node-0"), (2, "[node](http://x)")):
        with Trace(run, rank=rank) as trace:
            trace.start(0, host, f"cuda:{rank} (NVIDIA H200)")
    app = open_page(run, step="40", layer=NAMES[1])
    hosts = list(app.table[0].value["host"])
    assert [str(x).replace("\\", "") for x in hosts] == [
        "node-0", "not recorded", "[node](http://x)",
    ]  # fmt: skip
    assert "](" not in str(hosts[2])
    assert "cuda:2 (NVIDIA H200)" in str(app.table[0].value["device"][2]).replace("\\", "")
    assert "Host and device as each rank recorded them when attempt 1 began." in said(app)


def test_two_ranks_that_differ_blame_nobody(tmp_path: Path, open_page: Open) -> None:
    app = open_page(ranks_run(tmp_path / "run", 2), step="40", layer=NAMES[1])
    text = said(app)
    assert "Of two ranks that differ nobody knows which is wrong" in text
    assert "over ranks" not in app.table[0].value.columns


def test_an_incident_is_compared_with_the_steps_before(tmp_path: Path, open_page: Open) -> None:
    app = open_page(corrupt_run(tmp_path / "run"))
    text = said(app)
    assert "Selected: 27 to 36; baseline: 1 to 26, 26 steps." in text
    assert "One rank: values are compared with their own steps alone." in text
    assert "Click on a cell" in text
    app.segmented_control(key="ways").set_value("Ranks").run()
    assert "Only one rank recorded these steps" in said(app)
    app.number_input(key="compare_from").set_value(1).run()
    app.number_input(key="compare_to").set_value(5).run()
    assert "There is no step before step 1 to compare with." in said(app)


def test_a_proven_change_is_told_with_its_bits(tmp_path: Path, open_page: Open) -> None:
    text = said(open_page(corrupt_run(tmp_path / "run"), step="27", layer=NAMES[1]))
    assert "✖ proven" in text
    assert "19, 30" in text
    assert "param changed between step 26 and step 27" in text
    assert "rank 0: left by step 26, found by step 27" in text
    assert "✔ the same bits" in text
    assert "Only one rank recorded this layer here" in text


def test_without_statistics_the_page_says_why(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    assert "No statistics of layers are recorded" in said(open_page(run))
    with Trace(run) as trace:
        trace.row("steps", 1, loss=1.0)
    assert "No statistics of layers are recorded" in said(open_page(run))


def test_one_step_alone_is_not_judged(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as trace:
        trace.row("layers", 7, layer=0, norm=1.0, nonfinite=0, zeros=0)
    app = open_page(run, step="7", layer=NAMES[0])
    text = said(app)
    assert "Grey: nothing to judge by" in text
    assert "There is no step before step 7 to compare with." in text
    assert charts(app) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_nothing_but_values_without_a_logarithm(
    tmp_path: Path, open_page: Open, value: float
) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        with Trace(run, rank=rank) as trace:
            columns = {"norm": value, "max_abs": value, "mean_abs": value}
            bad = int(not np.isfinite(value))
            for layer in (0, 1):
                trace.rows(
                    "layers",
                    np.arange(30),
                    layer=layer,
                    nonfinite=bad,
                    zeros=4 - 4 * bad,
                    **columns,
                )
    for statistic in ("norm", "nonfinite"):
        app = open_page(run, step="9", layer=NAMES[0], statistic=statistic)
        text = said(app)
        assert ("✕: values that are not finite." in text) == (value != 0)
        assert charts(app) >= 2


def test_a_cell_that_was_not_recorded(tmp_path: Path, open_page: Open) -> None:
    app = open_page(ranks_run(tmp_path / "run"), step="999", layer=NAMES[0])
    assert "No statistics of this layer are recorded at this step." in said(app)
    app = open_page(tmp_path / "run", step="40", layer="no such layer", steps="x", layers="9-1")
    assert "Click on a cell" in said(app)


def test_the_window_of_the_address_and_the_way_back(tmp_path: Path, open_page: Open) -> None:
    app = open_page(ranks_run(tmp_path / "run"), steps="30-49", layers="1-1")
    assert "Shown: steps 30 to 49, 1 layer of 2." in said(app)
    labels = [button.label for button in app.button]
    assert labels == ["Whole run", "All layers"]
    app.button[0].click().run()
    assert "steps" not in app.query_params
    assert "Shown: steps 0 to 59, 1 layer of 2." in said(app)


def test_a_damaged_segment_is_told_and_costs_only_itself(tmp_path: Path, open_page: Open) -> None:
    run = ranks_run(tmp_path / "run")
    (path,) = (run / "trace" / "layers" / "rank=00003").glob("seg-*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    app = open_page(run, step="40", layer=NAMES[1])
    text = said(app)
    assert "1 file of the trace could not be read: cells are missing." in text
    assert [str(x) for x in app.table[0].value["rank"]] == ["0", "1", "2"]


def test_5000_layers_with_odd_names(tmp_path: Path, open_page: Open) -> None:
    odd = ["![x](http://example.com/x.png)\"'", "**b**.`c`", "$a$ :red[r]\n\u202e\x00", ""]
    names = [f"{odd[n % 4]}{n}" for n in range(5_000)]
    run = tmp_path / "run"
    run.mkdir()
    layers = tuple(Layer(n, name, (), (4,), "float32", 4) for n, name in enumerate(names))
    RunFile("run", 1, layers, (Attempt(1, 0, 0.0),)).write(run)
    with Trace(run) as trace:
        for step in range(12):
            norm = 1 + 0.1 * np.cos(np.arange(5_000) + step)
            norm[4_001] *= 1e6 if step == 9 else 1
            trace.rows(
                "layers",
                np.full(5_000, step),
                layer=np.arange(5_000, dtype=np.int32),
                norm=norm,
                nonfinite=0,
                zeros=0,
            )
    app = open_page(run, step="9", layer=names[4_001])
    raw = [element.value for element in (*app.subheader, *app.caption, *app.markdown)]
    assert not any("![x](" in value for value in raw)
    assert f"{' '.join(names[4_001].split())} at step 9" in said(app)
    assert charts(app) == 3
