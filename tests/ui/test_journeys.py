"""A journey through all pages in a real Chromium, on recorded runs.

Pictures are kept where SDC_GUARD_PICTURES names a folder.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from browser_page import WIDE, by_keys, keep, settle, whole
from playwright.sync_api import Page, expect
from test_browser import PATIENCE, ROOT, Visit, chromium, dashboard, pictures

__all__ = ["chromium", "pictures"]

pytestmark = pytest.mark.browser
RECORDED = ROOT / "sample_runs" / "recorded"


def go(page: Page, title: str, question: str) -> None:
    """By the navigation bar, which has no place for what is looked at."""
    page.get_by_role("link", name=title, exact=True).first.click()
    expect(page.get_by_role("heading", name=question, exact=True)).to_be_visible()


def copied(runs: Path) -> None:
    """Two recorded runs, and one with a damaged segment."""
    for name in ("weight_flip", "clean"):
        shutil.copytree(RECORDED / name, runs / name)
    shutil.copytree(RECORDED / "clean", runs / "damaged")
    (path,) = (runs / "damaged" / "trace" / "shadow").rglob("seal-*")
    content = path.read_bytes()
    path.write_bytes(bytes(len(content) // 2) + content[len(content) // 2 :])


def test_from_no_run_to_what_to_do_now(chromium, tmp_path: Path, pictures: Path | None) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with dashboard(runs, tmp_path / "server.log") as address:
        visit = Visit(chromium, address)
        page = visit.open("/")
        expect(page.get_by_text("this folder is empty")).to_be_visible()
        if pictures is not None:
            whole(page, pictures / "no-run.png")
        copied(runs)
        expect(page.get_by_role("combobox", name="Run")).to_be_visible()
        page.goto("/?run=weight_flip")
        to_the_located_bit(page, pictures)
        search_and_act(page, pictures)
        another_run(page)
        page.goto("/?run=damaged")
        told = re.compile("1 file of the trace could not be opened; alerts may have been")
        expect(page.get_by_text(told)).to_be_visible()
        keep(page, pictures, "damaged", (WIDE,))
        visit.close()
    assert visit.elsewhere == []
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def to_the_located_bit(page: Page, pictures: Path | None) -> None:
    """By clicks from the banner to the element and the bit that were flipped, as was recorded."""
    truth = json.loads((RECORDED / "weight_flip.truth.json").read_text())
    (fault,) = truth["injected"]
    (element,) = fault["elements"]
    expect(page.get_by_text("✖ Corrupt: an exact comparison")).to_be_visible()
    expect(page).to_have_title("Incidents · weight_flip · SDC Guard")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    keep(page, pictures, "incidents")
    page.get_by_role("link", name="Which layer and rank?").click()
    (bit,) = element["bits"]
    told = f"✖ {fault['tensor']} on rank 0, step {truth['step']}, element {element['index']}"
    expect(page.get_by_text(f"{told}, bit {bit}: proven.")).to_be_visible()
    title = f"{fault['tensor']} at step {truth['step']}"
    expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    keep(page, pictures, "locate")
    go(page, "Timeline", "When did it start?")
    expect(page.get_by_text("The first alert is of step 74, proven")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 74", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/timeline\?.*step=74"))
    by_keys_alone(page)
    keep(page, pictures, "timeline")


def by_keys_alone(page: Page) -> None:
    """Tab comes to each control and link after the one just clicked, and shows where it is."""
    settle(page)
    found = by_keys(page)
    wanted = ["Locate", "Act", "Run", "Live", "Step", "Layer", "whole run", "Fullscreen"]
    wanted += ["Which layer and rank?", "What now?"]
    names = [name for name, _, _ in found]
    assert set(wanted) <= set(names), names
    places = [names.index(name) for name in wanted]
    assert places == sorted(places), names
    # the page itself scrolls by keys; a table draws its focus into its canvas
    unseen = [name for name, tag, seen in found if not seen and tag not in ("MAIN", "CANVAS")]
    assert unseen == []


def search_and_act(page: Page, pictures: Path | None) -> None:
    """A search that is started from the page, its answer, and what follows."""
    go(page, "Bisect", "Which checkpoint?")
    expect(page.get_by_text("First suspect checkpoint: step 80")).to_be_visible()
    page.get_by_role("button", name="Search by the record").click()
    page.get_by_role("button", name="Start", exact=True).click()
    answer = page.get_by_test_id("stMetric").filter(has_text="First corrupt step")
    expect(answer).to_contain_text("80", timeout=3 * PATIENCE)
    keep(page, pictures, "bisect")
    go(page, "Act", "What now?")
    card = page.get_by_test_id("stMetric").filter(has_text="Go on from")
    expect(card).to_contain_text("step 60")
    keep(page, pictures, "act")


def another_run(page: Page) -> None:
    """What was selected in one run is not looked for in the next."""
    go(page, "Locate", "Which layer and rank?")
    expect(page.get_by_label("Step", exact=True)).to_have_value("74")
    page.get_by_role("combobox", name="Run").click()
    page.get_by_role("option", name="clean", exact=True).click()
    expect(page).to_have_url(re.compile(r"/locate\?run=clean$"))
    expect(page.get_by_text("No alert names a layer.")).to_be_visible()
    step = page.get_by_label("Step", exact=True)
    expect(step.first).to_have_value("")  # behind it, for a moment, that of the run before
    expect(step).to_have_count(1)
    expect(step).to_have_value("")
    expect(page).to_have_url(re.compile(r"/locate\?run=clean$"))
