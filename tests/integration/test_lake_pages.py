"""The dashboard over a real lake with two recorded runs, whose catalog is a file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lake_server
import pytest
from conftest import ROOT
from lake_server import Worker
from playwright.sync_api import Browser, expect

sys.path.insert(0, str(ROOT / "tests" / "ui"))
from test_browser import Visit, chromium, dashboard

__all__ = ["chromium"]

RECORDED = ROOT / "sample_runs" / "recorded"
RUNS = ("weight_flip", "gradient_flip")
PAGES = ("incidents", "timeline", "locate", "bisect", "act")

# All pages of both runs in one process, each as in a browser session of its own.
_OPEN = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/ui"]
import streamlit_once
from paged import MAIN, said
from streamlit.testing.v1 import AppTest
streamlit_once.share()
pages, locations = (json.loads(text) for text in sys.argv[2:])
found = {}
for name in pages:
    for page in pages[name]:
        sys.argv = ["main.py", *locations]
        app = AppTest.from_file(str(MAIN), default_timeout=100)
        app.switch_page(f"views/{page}.py")
        app.query_params["run"] = name
        app.run()
        buttons = [one.label for one in app.button]
        found[f"{name} {page}"] = {
            "text": said(app), "buttons": buttons, "charts": len(app.get("vega_lite_chart")),
            "errors": [one.value for one in app.error if one.icon == ":material/error:"],
        }
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Lake:
    """A lake with two runs, and a process that has DuckLake."""

    folder: Path
    worker: Worker

    @property
    def catalog(self) -> str:
        return str(self.folder / "catalog.ducklake")

    @property
    def locations(self) -> list[str]:
        return [f"ducklake:{self.catalog}?run={name}" for name in RUNS]

    def pages(self, asked: dict[str, list[str]], locations: list[str]) -> dict[str, Any]:
        """What pages show: by run, those of these names."""
        told = map(json.dumps, (asked, locations))
        out = self.worker.script(_OPEN, ROOT / "tests", *told)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    lake_server.require_packages()
    folder = tmp_path_factory.mktemp("lake")
    made = Lake(folder, Worker())
    for name in RUNS:
        run = folder / name
        shutil.copytree(RECORDED / name, run)
        done = made.worker.command(
            "upload", run, "--catalog", made.catalog, "--data", folder / "data"
        )
        assert done.code == 0, done.err
        shutil.rmtree(run)  # what is shown comes from the lake
    yield made
    made.worker.close()


@pytest.fixture(scope="module")
def pages(lake: Lake) -> dict[str, Any]:
    return lake.pages({RUNS[0]: list(PAGES), RUNS[1]: ["locate"]}, lake.locations)


def test_all_pages_show_what_was_uploaded(pages: dict[str, Any]) -> None:
    assert [page["errors"] for page in pages.values() if page["errors"]] == []
    text = {page: pages[f"weight_flip {page}"]["text"] for page in PAGES}
    truth = json.loads((RECORDED / "weight_flip.truth.json").read_text())
    tensor, step = truth["injected"][0]["tensor"], truth["step"]
    assert f"Step {step}: carried_digest in {tensor}" in text["incidents"]
    assert f"The first alert is of step {step}, proven" in text["timeline"]
    assert f"{tensor} on rank 0, step {step}" in text["locate"]
    assert f"step {step} is the first with an alert" in text["act"]
    assert "which rank is wrong is not known" in pages["gradient_flip locate"]["text"]
    charts = {page: pages[f"weight_flip {page}"]["charts"] for page in ("timeline", "locate")}
    assert charts == {"timeline": 3, "locate": 2}


def test_what_a_lake_lacks_is_told_with_its_reason(pages: dict[str, Any]) -> None:
    text = {page: pages[f"weight_flip {page}"]["text"] for page in PAGES}
    assert "not known: what cannot be read is not uploaded" in text["incidents"]
    assert "their files lie in the run's folder, not in the lake" in text["timeline"]
    assert "none is started or shown here" in text["bisect"]
    assert "sdc-bisect run FOLDER" in text["bisect"]
    assert "▲ suspect" in text["bisect"]
    assert "Nobody has searched" not in text["bisect"]
    assert "Start" not in pages["weight_flip bisect"]["buttons"]
    assert "they lie in the run's folder" in text["act"]
    assert "that the guard called clean is that of step 60, archive/step=000060" in text["act"]
    assert not re.search(r"sdc-guard restore \S*ducklake", text["act"])


def test_a_lake_with_several_runs_and_none_named_lists_them(lake: Lake) -> None:
    """In a line, also where a part of a page asks again by itself."""
    found = lake.pages({"x": ["incidents", "bisect"]}, [f"ducklake:{lake.catalog}"])
    assert len(found) == 2
    for page in found.values():
        (error,) = page["errors"]
        assert "several runs in the lake; which one?" in error.replace("\\", "")


def test_a_catalog_in_a_file_that_is_being_read_is_not_written(lake: Lake) -> None:
    """And what uploads is told what to do; readers do not keep each other out."""
    query = "SELECT count(*) FROM steps"
    hold = "import builtins, sys; from sdc_guard.store.opening import open_run\n"
    hold += f"builtins.kept = open_run(sys.argv[1]); print(kept.rows({query!r}))"
    assert lake.worker.script(hold, lake.locations[0]).strip() == "[(100,)]"
    other = Worker()
    try:
        refused = other.command("upload", RECORDED / RUNS[0], "--catalog", lake.catalog)
        read = other.command("sql", lake.locations[0], query)
    finally:
        other.close()
    assert refused.code == 6
    assert "a catalog in a file has one writer or several readers" in refused.err
    assert (read.code, read.out.split()) == (0, ["count_star()", "100"]), read.err


@pytest.mark.slow
@pytest.mark.browser
def test_a_journey_over_a_lake(chromium: Browser, lake: Lake, tmp_path: Path) -> None:
    first, second = lake.locations
    path = lake_server.environment()["PYTHONPATH"]
    with dashboard(first, tmp_path / "server.log", second, path=path) as address:
        visit = Visit(chromium, address)
        page = visit.open("/")
        expect(page.get_by_text("✖ Corrupt: an exact comparison")).to_be_visible()
        page.get_by_role("link", name="Locate", exact=True).press("Enter")
        expect(page.get_by_text("blocks.1.qkv.weight on rank 0, step 74")).to_be_visible()
        page.get_by_role("link", name="Show this cell").press("Enter")
        title = page.get_by_role("heading", name="blocks.1.qkv.weight at step 74", exact=True)
        expect(title).to_be_visible()
        page.get_by_role("link", name="Bisect", exact=True).press("Enter")
        expect(
            page.get_by_text("This run is in a lake, which has its record alone.")
        ).to_be_visible()
        page.get_by_role("link", name="Act", exact=True).press("Enter")
        expect(page.get_by_text("is that of step 60")).to_have_count(2)
        with page.expect_download() as download:
            page.get_by_role("button", name="Markdown").click()
        assert "is that of step 60" in download.value.path().read_text()
        page.goto("/act?run=gradient_flip")
        expect(page.get_by_text("ranks differ that were equal at step 65")).to_be_visible()
        visit.close()
    assert visit.elsewhere == []
    assert "Traceback" not in (tmp_path / "server.log").read_text()
