"""A walk through the dashboard of a run of 5,000 layers and 20,000 steps, in a real browser.

    python benchmarks/dashboard_huge.py                     # 100 M rows of layers; minutes to make
    python benchmarks/dashboard_huge.py --run DIR           # made there once, and kept
    python benchmarks/dashboard_huge.py --pictures DIR      # keeps a picture of each page

Needs Chromium, Playwright and 6 GB of disk. It walks as somebody on call does: the incident is
chosen, then its step is looked at on the timeline, its layer in the heatmap, where each click on
the alert's mark comes closer until the cell is one step of one layer, then its detail, and the
pages after it.

`click` is from the click that leads to a page to its main content, `address` the same from its
address in a new tab, `empty` an app that shows nothing, in the same browser and next to it, `MB`
what the server sent to the tab that walks, `CPU` and `RSS` (MiB) the server's. Ends with 1 if the
spike was not found in the heatmap by its mark, or its detail is not that of the spike.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import huge_run
from browser_server import Server, browser, dashboard, empty_app
from huge_run import Huge
from machine import line, machine
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.palette import LIGHT

_PATIENCE: Final = 60_000  # ms
_CLICKS: Final = 6  # from the whole run to a cell that cannot be looked at closer, at most
_BASELINE: Final = "Selection against baseline"
_REST: Final = """() => document.querySelector("[data-testid=stApp]")
    ?.getAttribute("data-test-script-state") === "notRunning"
    && !document.querySelector("[data-testid=stSkeleton]")"""
# Where a mark of this colour is drawn: the middle of the pixels that have it, in CSS pixels.
_MARK: Final = """colour => {
    const canvas = document.querySelector("canvas.marks");
    const {width, height} = canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    let [x, y, many] = [0, 0, 0];
    for (let at = 0; at < width * height; at++)
        if ([0, 1, 2].every(c => Math.abs(pixels[4 * at + c] - colour[c]) < 3)) {
            x += at % width; y += Math.floor(at / width); many++;
        }
    const scale = width / canvas.getBoundingClientRect().width;
    return many < 9 ? null : [x / many / scale, y / many / scale];
}"""


@dataclass
class Walk:
    """The tab that walks, and what was measured."""

    page: Page
    server: Server
    pictures: Path | None
    sent: int = 0
    number: int = 0
    taken: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(_PATIENCE)
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, content: str | bytes) -> None:
        self.sent += len(content)

    def step(self, name: str, go: Callable[[], object], seen: Callable[[Page], None]) -> None:
        """Do something, wait for what it leads to, tell what it took, and keep a picture."""
        sent, used, start = self.sent, self.server.processor(), time.perf_counter()
        go()
        seen(self.page)
        seconds = time.perf_counter() - start
        self.taken[name] = seconds
        self.page.wait_for_function(_REST)
        self.page.wait_for_timeout(2_000)  # a reader looks, and what is late has come
        self.number += 1
        megabytes, used = (self.sent - sent) / 1e6, self.server.processor() - used
        print(
            f"{name:<34}{seconds:9.2f}{megabytes:9.2f}{used:9.2f}{self.server.memory():9.0f}",
            flush=True,
        )
        if self.pictures is not None:
            _picture(self.page, self.pictures / f"{self.number:02}-{name.replace(' ', '-')}.png")


def _picture(page: Page, file: Path) -> None:
    """All of the page, which scrolls within itself."""
    size = page.viewport_size
    assert size is not None
    tall = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": min(max(tall, 900), 5_000)})
    page.wait_for_timeout(1_000)
    page.screenshot(path=file)
    page.set_viewport_size(size)
    page.wait_for_timeout(500)


def _text(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_text(text).first.wait_for(timeout=_PATIENCE)


def _heading(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("heading", name=text, exact=True).wait_for(
        timeout=_PATIENCE
    )


def _canvases(number: int) -> Callable[[Page], None]:
    return lambda page: page.locator("canvas.marks").nth(number - 1).wait_for(timeout=_PATIENCE)


def _heatmap(page: Page) -> None:
    """What is said below it comes with it; charts of the detail may be there before."""
    page.get_by_text("A cell shows the value with").first.wait_for(timeout=_PATIENCE)
    page.locator("canvas.marks").first.wait_for(timeout=_PATIENCE)


def walk(tab: Walk, found: Huge) -> bool:
    """All pages in their order; whether the spike's cell was reached by its mark alone."""
    page, step = tab.page, found.step
    link = page.get_by_role("link")
    tab.step("incidents", lambda: page.goto(tab.server.address), _text("What was checked"))
    # the first row of the table is the layer's incident; the loss's is the second
    tab.step("the loss's incident", lambda: _row(page, 1), _heading(_alerts(found.loss_step)))
    tab.step("the layer's incident", lambda: _row(page, 0), _heading(_alerts(step)))
    cell = page.get_by_role("link", name=found.name).get_attribute("href") or ""
    tab.step("timeline", link.filter(has_text="on the timeline").first.click, _canvases(3))
    tab.step(
        "locate", link.filter(has_text="Which layer and rank?").first.click, _heading(_BASELINE)
    )
    tab.step("heatmap", lambda: None, _heatmap)
    there = _closer(tab, found)
    tab.step("the alert's cell by its link", lambda: _open(page, tab.server, cell), _heatmap)
    tab.step(
        "bisect",
        link.filter(has_text="Which checkpoint?").first.click,
        _text("Nobody has searched this run yet"),
    )
    tab.step("act", lambda: page.get_by_role("link", name="Act").click(), _text("Quarantine:"))
    return there


def _alerts(opened: int) -> str:
    return f"Alerts of the incident opened at step {opened:,}"


def _row(page: Page, number: int) -> None:
    """Choose a row of the table of incidents, which is drawn on a canvas."""
    table = page.get_by_test_id("stDataFrameResizable").first
    table.click(position={"x": 17, "y": 35 * (number + 1) + 17})


def _open(page: Page, server: Server, address: str) -> None:
    page.goto(f"{server.address}/{address.removeprefix('/')}")


def _closer(tab: Walk, found: Huge) -> bool:
    """From the whole run to one step of one layer, by clicks on the mark of the alert."""
    page = tab.page
    title = page.get_by_role("heading", name=f"{found.name} at step {found.step:,}", exact=True)
    colour = [int(LIGHT.suspect[at : at + 2], 16) for at in (1, 3, 5)]
    tab.step("heatmap, nothing chosen", lambda: page.goto(f"{tab.server.address}/locate"), _heatmap)
    for turn in range(1, _CLICKS + 1):
        at = page.evaluate(_MARK, colour)
        if at is None:
            return False
        before = page.url
        canvas = page.locator("canvas.marks").first
        tab.step(
            f"click {turn} on the mark",
            lambda at=at, canvas=canvas: canvas.click(position={"x": at[0], "y": at[1]}),
            lambda page: title.wait_for(timeout=_PATIENCE),
        )
        if page.url == before:  # there is nothing closer
            return True
    return False


def addresses(chromium: Browser, server: Server, nothing: Server, found: Huge) -> None:
    """Each page by its address in a new tab, beside the empty app: the best of two."""
    cell = urlencode({"step": found.step, "layer": found.name})
    pages = {
        "incidents": ("/", _text("What was checked")),
        "timeline": (f"/timeline?step={found.step}", _canvases(3)),
        "timeline, a layer": (f"/timeline?{cell}", _canvases(4)),
        "locate, heatmap": ("/locate", _heatmap),
        "locate, a cell": (f"/locate?{cell}", _heatmap),
        "bisect": ("/bisect", _text("Nobody has searched this run yet")),
        "act": ("/act", _text("Quarantine:")),
    }
    print(f"{'seconds':<34}{'address':>9}{'empty':>9}{'above':>9}")
    for name, (path, seen) in pages.items():
        shown = min(_opened(chromium, server.address + path, seen) for _ in range(2))
        empty = min(_opened(chromium, nothing.address, _text("nothing")) for _ in range(2))
        print(f"{name:<34}{shown:9.2f}{empty:9.2f}{shown - empty:+9.2f}", flush=True)


def _opened(chromium: Browser, address: str, seen: Callable[[Page], None]) -> float:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    seen(page)
    seconds = time.perf_counter() - start
    context.close()
    return seconds


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--run", type=Path, help="where the run is, or is made and stays")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each page")
    asked = parser.parse_args()
    print(line(machine()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdc-guard-huge-")))
        run = asked.run or folder / "run"
        found = huge_run.planted(asked.layers, asked.steps)
        if not run.exists():
            start = time.perf_counter()
            huge_run.make(run, asked.layers, asked.steps)
            print(f"made in {time.perf_counter() - start:.0f} s")
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
        rows = asked.layers * asked.steps
        print(
            f"{asked.layers:,} layers × {asked.steps:,} steps: {rows:,} rows, {size / 1e9:.2f} GB"
        )
        if asked.pictures is not None:
            asked.pictures.mkdir(parents=True, exist_ok=True)
        chromium = stack.enter_context(browser())
        server = stack.enter_context(dashboard(run))
        nothing = stack.enter_context(empty_app(folder))
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        tab = Walk(context.new_page(), server, asked.pictures)
        print(f"{'seconds':<34}{'click':>9}{'MB':>9}{'CPU':>9}{'RSS':>9}")
        there = walk(tab, found)
        context.close()
        addresses(chromium, server, nothing, found)
        print(f"server's RSS at the end: {server.memory():.0f} MiB")
        print(f"the spike's cell was {'reached' if there else 'NOT reached'} by its mark")
    return 0 if there else 1


if __name__ == "__main__":
    sys.exit(main())
