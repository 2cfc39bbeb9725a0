"""Pages that stay open while a run grows, and several sessions at once on one run."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made import NAMES, Trace, corrupt_run, make_run
from streamlit.runtime.caching import cache_data_api, get_data_cache_stats_provider
from streamlit.testing.v1 import AppTest

from app import counts, queries, series, standing
from app.locating import queries_cell, scans
from app.locating.statistics_sql import STATISTICS
from app.source import Source, source_of
from app.standing import Standing
from sdc_guard.store.reader import RunReader

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
KEPT = 16  # entries of a cache of one page's charts, at most


def entries() -> Counter[str]:
    """How many entries each of Streamlit's caches of data has."""
    found: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        # which would make one line of all entries of a cache
        patch.setattr(cache_data_api, "group_cache_stats", list)
        for stats in get_data_cache_stats_provider().get_stats().values():
            found.update(stat.cache_name for stat in stats)
    return found


@pytest.mark.parametrize(
    ("page", "refreshes"),
    [
        ("views/incidents.py", KEPT + 2),
        ("views/locate.py", KEPT + 2),
        # to find a growth of less than one thing a refresh
        pytest.param("views/incidents.py", 100, marks=pytest.mark.slow),
    ],
)
def test_refreshes_of_a_run_that_grows_keep_no_more_and_show_what_is_new(
    page: str, refreshes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = corrupt_run(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
    app = AppTest.from_file(str(MAIN), default_timeout=60)
    app.switch_page(page)
    app.query_params["step"] = "27"
    app.query_params["layer"] = NAMES[1]
    keys, readers = [], weakref.WeakSet[RunReader]()
    for step in range(100, 100 + refreshes):
        with Trace(run) as trace:
            trace.steps(step, step)
        app.run()
        assert not app.exception, app.exception
        assert any(f"newest step {step}" in caption.value for caption in app.caption)
        keys.append(len(app.session_state))
        readers.add(source_of(str(run)).reader())
    gc.collect()
    assert keys[5:] == [keys[5]] * (refreshes - 5)
    assert 1 < max(entries().values()) <= KEPT, entries()
    assert len(readers) == 1  # one reader for the whole time, and its files are not opened anew
    assert queries.coverage(source_of(str(run)).reader()).newest == 99 + refreshes


def test_eight_sessions_at_once_never_get_an_empty_answer(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", world_size=2)
    for rank in (0, 1):
        with Trace(run, rank=rank) as trace:
            trace.steps(1, 60)
            norms = np.linspace(1.0, 2.0, 60)
            trace.rows("layers", np.arange(101, 161), layer=0, norm=norms, scope="local")
    source = Source(run)
    norm = STATISTICS["norm"]

    def look(number: int) -> list[Any]:
        found = []
        for turn in range(6):
            step = 1 + (7 * number + turn) % 60
            reader = source.reader()
            found += [
                len(queries_cell.values_at(reader, norm, 1, step)) == 2,
                len(queries_cell.curves(reader, norm, 0, "local", 101, 160)) == 120,
                len(series.series(reader, "loss", 1, 60).points) >= 60,
                queries.covered(reader, None).ranks == 2,
            ]
        return found

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(look, number) for number in range(8)]
        for step in range(61, 66):  # news while they look
            with Trace(run) as trace:
                trace.row("events", step, kind="note", detail="")
        answers = [ok for future in asked for ok in future.result(timeout=120)]
    assert len(answers) == 8 * 6 * 4
    assert all(answers)


def test_a_large_run_is_shown_before_its_digests_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_AT_ONCE", 0)
    monkeypatch.setattr(scans, "_AT_ONCE", 0)
    waiting = []

    def later(one: Standing[Any], *asked: Any, **_: Any) -> None:
        waiting.append(lambda: Standing.of(one, *asked, at_once=True))

    run = corrupt_run(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
    with monkeypatch.context() as patched:
        patched.setattr(Standing, "_make_apart", lambda self, *asked: later(self, *asked))
        app = AppTest.from_file(str(MAIN), default_timeout=60).run()
        assert not app.exception, app.exception
        assert "Corrupt" in app.error[0].value
        shown = {metric.label: (metric.value, metric.delta) for metric in app.metric}
        assert shown["State compared"] == ("…", "the digests are being read")
        app.switch_page("views/locate.py").run()
        assert not app.exception, app.exception
        assert any("Reading the norm of" in info.value for info in app.info)
        app.query_params["step"], app.query_params["layer"] = "27", NAMES[1]
        app.run()
        assert any(title.value.endswith("at step 27") for title in app.subheader)
    for make in waiting:
        make()
    app.run()
    assert not any("Reading the norm" in info.value for info in app.info)
    assert len(app.get("vega_lite_chart")) == 3
    # the run grows, and what took long is not done again at once
    monkeypatch.setattr(standing, "_QUICK", 0.0)
    monkeypatch.setattr(standing, "_SHARE", 1e9)
    with Trace(run) as trace:
        trace.steps(41, 41)
    app.run()
    said = " ".join(caption.value for caption in app.caption).replace("\\", "")
    assert "As of step 40: the run has grown since" in said
    app.switch_page("views/incidents.py").run()
    shown = {metric.label: (metric.value, metric.delta) for metric in app.metric}
    assert shown["State compared"] == ("100 %", "78 digests, to step 40")
