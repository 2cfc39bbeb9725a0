"""Journeys through all pages in a real Chromium, on recorded runs and on one in progress.

The pictures are kept where SDC_GUARD_PICTURES names a folder, else in the test's own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser_page import by_keys, charts_in_words, faint, settle, sideways, whole
from playwright.sync_api import Page, expect
from test_browser import PATIENCE, ROOT, Visit, chromium, dashboard, ended, wait_for_line

from app.palette import DARK

__all__ = ["chromium"]

pytestmark = pytest.mark.browser
RECORDED = ROOT / "sample_runs" / "recorded"
WIDE, NARROW = 1280, 700

# Each line on its input lets it take ten steps more, and publish them.
TRAINING = """
import sys, torch
from sdc_guard import Guard
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
guard = Guard(model, optimizer, run=sys.argv[1])
for _ in sys.stdin:
    for _ in range(10):
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        guard.observe(loss)
        optimizer.step()
        optimizer.zero_grad()
    guard.flush()
    print("PUBLISHED", flush=True)
guard.close()
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SDC_GUARD_PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(page: Page, file: Path, widths: tuple[int, ...] = (WIDE, NARROW)) -> None:
    """A picture of the page as it is when nothing is being drawn, and of a narrow one.

    Each text on it has the contrast that it needs, each chart a name, and nobody scrolls sideways.
    """
    settle(page)
    assert "Traceback" not in page.inner_text("body")
    assert faint(page) == {}
    assert all(charts_in_words(page))
    for width in widths:
        name = file if width == WIDE else file.with_stem(f"{file.stem}-narrow")
        page.set_viewport_size({"width": width, "height": 900})
        whole(page, name)
        assert sideways(page) == 0, name
    page.set_viewport_size({"width": WIDE, "height": 900})


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


def test_from_no_run_to_what_to_do_now(chromium, tmp_path: Path, pictures: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with dashboard(runs, tmp_path / "server.log") as address:
        visit = Visit(chromium, address)
        page = visit.open("/")
        expect(page.get_by_text("this folder is empty")).to_be_visible()
        copied(runs)
        with ended(training(runs / "live", tmp_path / "training.log")) as trained:
            ten_more(trained)
            expect(page.get_by_role("combobox", name="Run")).to_be_visible()
            page.goto("/?run=weight_flip")
            to_the_located_bit(page, pictures)
            a_link_and_the_dark(visit, chromium, page.url, pictures)
            search_and_act(page, pictures)
            another_run(page)
            page.goto("/?run=damaged")
            told = re.compile("1 file of the trace could not be opened; alerts may have been")
            expect(page.get_by_text(told)).to_be_visible()
            keep(page, pictures / "damaged.png", (WIDE,))
            in_progress(page, trained, pictures)
        visit.close()
    assert visit.elsewhere == []
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def to_the_located_bit(page: Page, pictures: Path) -> None:
    """By clicks from the banner to the element and the bit that were flipped, as was recorded."""
    truth = json.loads((RECORDED / "weight_flip.truth.json").read_text())
    (fault,) = truth["injected"]
    (element,) = fault["elements"]
    expect(page.get_by_text("✖ Corrupt: an exact comparison")).to_be_visible()
    expect(page).to_have_title("Incidents · weight_flip · SDC Guard")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    keep(page, pictures / "incidents.png")
    page.get_by_role("link", name="Which layer and rank?").click()
    (bit,) = element["bits"]
    told = f"✖ {fault['tensor']} on rank 0, step {truth['step']}, element {element['index']}"
    expect(page.get_by_text(f"{told}, bit {bit}: proven.")).to_be_visible()
    title = f"{fault['tensor']} at step {truth['step']}"
    expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    keep(page, pictures / "locate.png")
    go(page, "Timeline", "When did it start?")
    expect(page.get_by_text("The first alert is of step 74, proven")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 74", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/timeline\?.*step=74"))
    by_keys_alone(page)
    keep(page, pictures / "timeline.png")


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


def a_link_and_the_dark(visit: Visit, chromium, url: str, pictures: Path) -> None:
    """The address alone shows the same to somebody else, in the colours that he likes."""
    dark = Visit(chromium, url.split("/timeline")[0], "dark")
    page = dark.open(url.replace("/timeline", "/locate"))
    expect(page.get_by_role("heading", name="blocks.1.qkv.weight at step 74")).to_be_visible()
    wanted = tuple(int(DARK.page[at : at + 2], 16) for at in (1, 3, 5))
    expect(page.get_by_test_id("stApp")).to_have_css("background-color", f"rgb{wanted}")
    # on the chart, too: its page is seen through it
    expect(page.locator("canvas.marks").first).to_be_visible()
    keep(page, pictures / "locate-dark.png", (WIDE,))
    visit.elsewhere += dark.elsewhere
    dark.close()


def search_and_act(page: Page, pictures: Path) -> None:
    """A search that is started from the page, its answer, and what follows."""
    go(page, "Bisect", "Which checkpoint?")
    expect(page.get_by_text("First suspect checkpoint: step 80")).to_be_visible()
    page.get_by_role("button", name="Search by the record").click()
    page.get_by_role("button", name="Start", exact=True).click()
    answer = page.get_by_test_id("stMetric").filter(has_text="First corrupt step")
    expect(answer).to_contain_text("80", timeout=3 * PATIENCE)
    keep(page, pictures / "bisect.png")
    go(page, "Act", "What now?")
    card = page.get_by_test_id("stMetric").filter(has_text="Go on from")
    expect(card).to_contain_text("step 60")
    keep(page, pictures / "act.png")


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


def in_progress(page: Page, trained: subprocess.Popen[str], pictures: Path) -> None:
    """Steps come in, and what is looked at stays."""
    page.goto("/timeline?run=live&step=7")
    # the guard has the tenth, too, and tells it when it is over
    expect(page.get_by_text("newest step 9")).to_be_visible()
    layer = page.get_by_role("combobox", name="Layer")
    layer.click()
    page.get_by_role("option", name="weight", exact=True).click()
    expect(page).to_have_url(re.compile("layer=weight"))
    ten_more(trained)
    expect(page.get_by_text("newest step 19")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 7", exact=True)).to_be_visible()
    expect(layer).to_have_value("weight")
    expect(page).to_have_url(re.compile("step=7.*layer=weight"))
    keep(page, pictures / "in-progress.png", (WIDE,))


def training(run: Path, log: Path) -> subprocess.Popen[str]:
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def ten_more(trained: subprocess.Popen[str]) -> None:
    assert trained.stdin is not None
    trained.stdin.write("\n")
    trained.stdin.flush()
    wait_for_line(trained, "PUBLISHED")
