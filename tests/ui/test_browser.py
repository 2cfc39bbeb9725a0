"""The dashboard in a real Chromium, while a real training writes the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import preloaded
import pytest
from browser_page import WIDE, keep
from hand_made import NAMES, clean_run, corrupt_run
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright

from app.palette import DARK

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60_000  # ms; how long a page may take on a loaded machine
expect.set_options(timeout=PATIENCE)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # nothing but this machine has an address, whatever a page asks for
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = "no Chromium on this machine (looked for " + ", ".join(names) + ")"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(reason + ", and REQUIRE_BROWSER=1")
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def pictures() -> Path | None:
    """The folder that SDC_GUARD_PICTURES names for pictures of pages."""
    name = os.environ.get("SDC_GUARD_PICTURES")
    if not name:
        return None
    Path(name).mkdir(parents=True, exist_ok=True)
    return Path(name)


class Visit:
    """Pages of one browser context, and every request of theirs that went elsewhere."""

    def __init__(
        self, browser: Browser, address: str, scheme: Literal["light", "dark"] = "light"
    ) -> None:
        self._context = browser.new_context(base_url=address, color_scheme=scheme)
        self._context.set_default_timeout(PATIENCE)
        self._context.on("request", self._note)
        self.elsewhere: list[str] = []

    def _note(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self.elsewhere.append(request.url)

    def open(self, address: str) -> Page:
        page = self._context.new_page()
        page.goto(address)
        return page

    def close(self) -> None:
        self._context.close()


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever happens, the process is gone afterwards, also one that is stopped."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def dashboard(runs: Path | str, log: Path, *options: str, path: str = str(ROOT)) -> Iterator[str]:
    """Serve the dashboard by `sdc-guard dashboard`; yields its address.

    Args:
        runs: a folder, or a location in a lake.
        log: gets what the server says on stderr.
        *options: more of the command line.
        path: where its modules are looked for first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    python = preloaded.python() if path == str(ROOT) else sys.executable
    command = [python, "-m", "sdc_guard.cli", "dashboard", str(runs)]
    with log.open("w") as errors:
        server = subprocess.Popen(
            [*command, "--port", str(port), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": path},
        )
        with ended(server):
            wait_for_line(server, "URL:")
            yield f"http://127.0.0.1:{port}"


def wait_for_line(process: subprocess.Popen[str], start: str) -> None:
    """Read a process's output up to the line that starts so."""
    assert process.stdout is not None
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    try:
        lines = iter(process.stdout.readline, "")
        assert any(line.strip().startswith(start) for line in lines), f"ended before {start!r}"
    finally:
        watchdog.cancel()


SIZES = "CONTEXT, WIDTH, HEADS, BLOCKS, BATCH, VOCABULARY = 64, 128, 4, 4, 16, 256\n"


def training(run: Path, log: Path) -> subprocess.Popen[str]:
    """tiny_gpt, with fewer tokens a step, and one flipped bit in a weight at step 27.

    Its first line is the number of the process that trains.
    """
    source = (ROOT / "sample_runs" / "tiny_gpt.py").read_text(encoding="utf-8")
    assert SIZES in source
    few = SIZES.replace("64", "16", 1).replace("4, 16,", "4, 4,")
    script = log.with_name("small_gpt.py")
    told = "import os\nprint(os.getpid(), flush=True)\n"
    script.write_text(source.replace(SIZES, f"{few}{told}"), encoding="utf-8")
    options = ["--steps", "60", "--threads", "1", "--fault", "weight@27", "--fault-seed", "3"]
    with log.open("w") as errors:
        return subprocess.Popen(
            [preloaded.python(), str(script), "--run", str(run), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def injected(run: Path) -> dict[str, Any]:
    """What the injector itself recorded: tensor, index, before, after."""
    lines = (run / "inject" / "journal.jsonl").read_text().splitlines()
    (fault,) = (line for line in map(json.loads, lines) if line["event"] == "fired")
    (word,) = fault["touched"]
    return {"tensor": fault["tensor"], **word}


def test_the_incident_is_seen_while_the_training_runs_and_afterwards(
    chromium: Browser, tmp_path: Path, pictures: Path | None
) -> None:
    run = tmp_path / "run"
    with dashboard(run, tmp_path / "server.log") as address:
        visit = Visit(chromium, address)
        page = visit.open("/")
        expect(page.get_by_text("no run folder there")).to_be_visible()
        with ended(training(run, tmp_path / "training.log")) as trained:
            assert trained.stdout is not None
            number = int(trained.stdout.readline())
            wait_for_line(trained, "step   40")
            os.kill(number, signal.SIGSTOP)  # for certain still running while we look
            see_incident(page, run)
            timeline = visit.open("/timeline?step=27")
            expect(timeline.get_by_role("heading", name="Step 27", exact=True)).to_be_visible()
            expect(timeline.locator("canvas.marks")).to_have_count(3)
            expect(timeline.locator("svg.marks")).to_have_count(0)
            layer = choose_a_layer(timeline, injected(run)["tensor"])
            expect(timeline.get_by_text("newest step 60")).to_have_count(0)
            assert trained.poll() is None
            os.kill(number, signal.SIGCONT)
            assert trained.wait(timeout=300) == 0
        # both pages bring themselves up to date, and what is looked at stays
        for shown in (page, timeline):
            expect(shown.get_by_text("newest step 60")).to_be_visible()
        expect(page.get_by_text("2 checkpoints held back as suspect")).to_be_visible()
        see_incident(page, run)
        expect(timeline.get_by_role("heading", name="Step 27", exact=True)).to_be_visible()
        expect(layer).to_have_value(injected(run)["tensor"])
        expect(timeline).to_have_url(re.compile("step=27.*layer="))
        keep(timeline, pictures, "in-progress", (WIDE,))
        page.get_by_role("link", name="Step 27 on the timeline").click()
        expect(page.get_by_text("Band (20, 40]: last clean to first suspect")).to_be_visible()
        expect(page.get_by_role("heading", name="Step 27", exact=True)).to_be_visible()
        expect(page).to_have_url(re.compile(r"/timeline\?.*step=27"))
        for shown in (page, timeline):
            assert "Traceback" not in shown.inner_text("body")
        visit.close()
    assert visit.elsewhere == []
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def choose_a_layer(timeline: Page, name: str) -> Locator:
    """By the box of the timeline, into the address."""
    layer = timeline.get_by_role("combobox", name="Layer")
    layer.click()
    layer.fill(name)  # of many, not all are in the list before
    timeline.get_by_role("option", name=name, exact=True).click()
    expect(timeline).to_have_url(re.compile(f"layer={re.escape(name)}"))
    return layer


def see_incident(page: Page, run: Path) -> None:
    """The page shows what was injected, as the injector recorded it."""
    fault = injected(run)
    expect(page.get_by_text("✖ Corrupt: an exact comparison found a change.")).to_be_visible()
    expect(page.get_by_text("Alerts of the incident opened at step 27")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="carried_digest").last
    change = f"0x{fault['before']:08x} → 0x{fault['after']:08x}"
    bit = (fault["before"] ^ fault["after"]).bit_length() - 1
    place = f"param, element {fault['index']}, bit {bit}"
    told = ["27", fault["tensor"], "carried_digest", place, change, "exact"]
    text = re.compile("param changed between step 26 and step 27 outside the optimizer")
    expect(row.get_by_role("cell")).to_have_text([*told, text])


def test_a_token_then_a_dark_page_about_the_run_of_the_link(
    chromium: Browser, tmp_path: Path, pictures: Path | None
) -> None:
    run = corrupt_run(tmp_path / "runs" / "second")
    clean_run(tmp_path / "runs" / "first")
    name = "![x](http://example.com/x.png) <b>:red[r] $a$ :material/shield: **w**"
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace(json.dumps(NAMES[1]), json.dumps(name)))
    token = secrets.token_urlsafe(24)
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    options = ("--token-file", str(tmp_path / "token"))
    with dashboard(tmp_path / "runs", tmp_path / "server.log", *options) as address:
        visit = Visit(chromium, address, "dark")
        page = visit.open("/?run=second")
        ask_for_the_token(page, token)
        see_the_second_run(page, name)
        open_more_tabs(visit, page, name)
        linked = visit.open(f"/locate?run=second&token={token}")
        click_a_cell(linked)
        stranger = Visit(chromium, address, "dark")  # another browser has no tab to ask
        other = stranger.open("/?run=second")
        expect(other.get_by_label("Token", exact=True)).to_be_visible()
        the_same_by_its_address(other, linked, token, pictures)
        stranger.close()
        another_run_on_the_timeline(linked)
        visit.close()
    assert visit.elsewhere == stranger.elsewhere == []
    assert token not in (tmp_path / "server.log").read_text()


def ask_for_the_token(page: Page, token: str) -> None:
    """Nothing of a run is on the page until the token is right."""
    field = page.get_by_label("Token", exact=True)
    expect(field).to_be_visible()
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_text("This is not the token.")).to_be_visible()
    assert "second" not in page.inner_text("body")
    expect(field).to_have_value("")
    field.fill(token)
    field.press("Enter")


def open_more_tabs(visit: Visit, page: Page, name: str) -> None:
    """Another tab is let in by those that are open, and each can be reloaded after that."""
    page.reload()
    see_the_second_run(page, name)  # by the tab's ticket
    page.reload()
    see_the_second_run(page, name)  # and by another: each is good once
    tabs = [page]
    for _ in range(2):
        tabs.append(visit.open("/?run=second"))  # without a token in its address
        see_the_second_run(tabs[-1], name)
    for tab in (page, tabs[-1]):
        tab.reload()
        see_the_second_run(tab, name)
        expect(tab.get_by_label("Token", exact=True)).to_have_count(0)
    for tab in tabs:
        tab.close()


def see_the_second_run(page: Page, name: str) -> None:
    """The run of the link, in dark colours, with a name that is text and no Markdown."""
    expect(page.get_by_text("✖ Corrupt: an exact comparison")).to_be_visible()
    expect(page.get_by_role("combobox", name="Run")).to_have_value("second")
    expect(page.get_by_text(name, exact=True).first).to_be_visible()
    see_the_dark(page)
    expect(page.get_by_text("Deploy", exact=True)).to_have_count(0)


def see_the_dark(page: Page) -> None:
    wanted = tuple(int(DARK.page[at : at + 2], 16) for at in (1, 3, 5))
    expect(page.get_by_test_id("stApp")).to_have_css("background-color", f"rgb{wanted}")


def click_a_cell(page: Page) -> None:
    """From a cell of the heatmap, which is small enough to have labels, to its detail."""
    page.get_by_label(f"{NAMES[0]}, step 21: z", exact=False).first.click()
    title = page.get_by_role("heading", name=f"{NAMES[0]} at step 21", exact=True)
    expect(title).to_be_visible()
    expect(page.get_by_text("Selected: 21; baseline: 1 to 20, 20 steps.")).to_be_visible()
    for part in (r"run=second", r"step=21", rf"layer={NAMES[0]}"):
        expect(page).to_have_url(re.compile(rf"/locate\?.*{part}"))
    assert "token" not in page.url


def the_same_by_its_address(page: Page, linked: Page, token: str, pictures: Path | None) -> None:
    """The address alone shows the same to somebody else, in the colours that he likes."""
    page.goto(f"{linked.url}&token={token}")
    title = page.get_by_role("heading", name=f"{NAMES[0]} at step 21", exact=True)
    expect(title).to_be_visible()
    see_the_dark(page)
    # on the chart, too: its page is seen through it
    expect(page.locator("canvas.marks, svg.marks").first).to_be_visible()
    keep(page, pictures, "locate-dark", (WIDE,))


def another_run_on_the_timeline(page: Page) -> None:
    """The step belongs to a widget of this page, and to the run that is left."""
    page.get_by_role("link", name="Timeline", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="Step 21", exact=True)).to_be_visible()
    expect(page.locator("canvas.marks")).to_have_count(4)  # one is of the layer
    page.get_by_role("combobox", name="Run").click()
    page.get_by_role("option", name="first", exact=True).click()
    expect(page).to_have_url(re.compile(r"/timeline\?run=first$"))
    page.get_by_role("link", name="Incidents", exact=True).press("Enter")
    expect(page.get_by_text("✔ Clean so far")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/\?run=first$"))
