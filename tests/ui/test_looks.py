"""All pages of all recorded runs, light and dark, wide and narrow: pictures, and what is measured.

The pictures are kept where SDC_GUARD_PICTURES names a folder, else in the test's own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import pytest
from browser_page import charts_in_words, faint, settle, sideways, whole
from playwright.sync_api import Browser
from test_browser import ROOT, Visit, chromium, dashboard

__all__ = ["chromium"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RECORDED = ROOT / "sample_runs" / "recorded"
RUNS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
PAGES = ("", "timeline", "locate", "bisect", "act")
WIDTHS = (1280, 700)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("looks")
    for name in RUNS:
        shutil.copytree(RECORDED / name, folder / "runs" / name)
    with dashboard(folder / "runs", folder / "server.log") as found:
        yield found


def looked_at(run: str) -> dict[str, str | int]:
    """What an address says of the run: where something was done to it, and else the run alone."""
    truth = json.loads((RECORDED / f"{run}.truth.json").read_text())
    faults = truth["injected"]
    layer = str(faults[0].get("tensor") or "") if faults else ""
    step = truth.get("step")
    return {"run": run, **({"step": step} if step else {}), **({"layer": layer} if layer else {})}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("run", RUNS)
def test_all_is_legible_and_in_place(
    chromium: Browser,
    address: str,
    tmp_path: Path,
    run: str,
    scheme: Literal["light", "dark"],
) -> None:
    pictures = Path(os.environ.get("SDC_GUARD_PICTURES") or tmp_path)
    visit = Visit(chromium, address, scheme)
    for name in PAGES:
        page = visit.open(f"/{name}?{urlencode(looked_at(run))}")
        settle(page)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            settle(page)
            whole(page, pictures / f"{run}-{name or 'incidents'}-{scheme}-{width}.png")
            assert sideways(page) == 0, (name, width)
            assert faint(page) == {}, (name, width)
        assert all(charts_in_words(page)), name
        page.close()
    visit.close()
    assert visit.elsewhere == []
