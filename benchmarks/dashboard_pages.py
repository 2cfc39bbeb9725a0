"""How long the dashboard's pages take in a real browser, beside an app that shows nothing.

    python benchmarks/dashboard_pages.py                    # 5,000 layers, 8,000 steps: 40 M rows
    python benchmarks/dashboard_pages.py --steps 20000      # 100 M rows
    python benchmarks/dashboard_pages.py --run DIR          # made there once, and kept
    python benchmarks/dashboard_pages.py --refreshes 200    # and memory over so many refreshes
    python benchmarks/dashboard_pages.py --refreshes 200 --page /locate

Needs Chromium and Playwright. `cold` is the first page that a server shows, from the address to its
main content: each has a server of its own, just started, and an empty app's server beside it.
`first` is a page's first view by a server that showed another page before, `again` the least of
the following ones; views of the empty app lie in between. Locate is shown before its heatmap, which
is told apart; `bars` are what it compares last, below the heatmap. Bisect and Act need what a
server loads after its first pages: cold, `said` is until the page says so, and the other line until
its content. `click` is from a click on a cell of the heatmap to the heading of its detail. Four
viewers look at once, and no chart may be blank. While the run grows a page refreshes itself, and
memory is told. Times are wall times: on a busy machine, of which `load` tells, compare them with
the empty app's of the same run, and look at the CPU seconds of the server and of the browser's tab.
Ends with 1 if a chart was blank.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from browser_server import Server, browser, dashboard, empty_app
from dashboard_run import make, publish_step
from machine import line, machine
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sdc_guard import RunReader

_PATIENCE: Final = 120_000  # ms
_PAGES: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "incidents": ("/", lambda page: _text(page, "an exact comparison found a change")),
    "timeline": ("/timeline", lambda page: _canvases(page, 3)),
    "locate": ("/locate", lambda page: _text(page, "Selection against baseline")),
    "heatmap": ("/locate", lambda page: _canvases(page, 1)),
    "bars": ("/locate", lambda page: _canvases(page, 2)),
    "bisect": ("/bisect", lambda page: _text(page, "Nobody has searched this run yet")),
    "act": ("/act", lambda page: _text(page, "Quarantine:")),
}
_LOADING: Final = "Loading what reads checkpoints"
_INKED: Final = """() => [...document.querySelectorAll('canvas.marks')].map(canvas => {
    const {width, height} = canvas;
    const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
    const colours = new Set();
    for (let at = 0; at < pixels.length; at += 4 * 7)
        colours.add((pixels[at] << 16) + (pixels[at + 1] << 8) + pixels[at + 2]);
    return colours.size;
})"""
_FEWEST_COLOURS: Final = 8  # of a chart with something in it; axes alone have fewer


def _text(page: Page, text: str) -> None:
    page.get_by_text(text).first.wait_for(timeout=_PATIENCE)


def _canvases(page: Page, number: int) -> None:
    page.locator("canvas.marks").nth(number - 1).wait_for(timeout=_PATIENCE)


@dataclass(frozen=True)
class View:
    """A page's view: seconds to each of what was seen, and the processor seconds of its tab."""

    seconds: tuple[float, ...]
    tab: float


def _view(chromium: Browser, server: Server, path: str, *seen: Callable[[Page], None]) -> View:
    """A view of a page in a browser without anything kept."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    started = time.perf_counter()
    page.goto(server.address + path, wait_until="commit")
    seconds = []
    for one in seen:
        one(page)
        seconds.append(time.perf_counter() - started)
    told = context.new_cdp_session(page)
    told.send("Performance.enable")
    found = {x["name"]: x["value"] for x in told.send("Performance.getMetrics")["metrics"]}
    context.close()
    return View(tuple(seconds), found["ProcessTime"])


def _empty(chromium: Browser, server: Server) -> View:
    return _view(chromium, server, "/", lambda page: _text(page, "nothing"))


def _row(
    what: str, pages: list[View], empties: list[View], used: float | None = None, seen: int = -1
) -> None:
    """The least of each column."""
    page, empty = (min(x.seconds[n] for x in found) for found, n in ((pages, seen), (empties, -1)))
    tab, nothing = (min(x.tab for x in found) for found in (pages, empties))
    server = f"{'':9}" if used is None else f"{used:9.2f}"
    print(
        f"{what:<30}{page:9.2f}{empty:9.2f}{page - empty:+9.2f}"
        f"{server}{tab:9.2f}{nothing:9.2f}{os.getloadavg()[0]:8.1f}",
        flush=True,
    )


def cold(chromium: Browser, run: Path, folder: Path, repeats: int, names: list[str]) -> None:
    """The first page of a new server."""
    for name in names:
        path, content = _PAGES[name]
        pages, empties, used = [], [], []
        said = [_loading] if name in ("bisect", "act") else []
        for _ in range(repeats):
            with empty_app(folder) as server:
                time.sleep(2)  # both servers have as long to come to rest
                empties.append(_empty(chromium, server))
            with dashboard(run) as server:
                time.sleep(2)
                before = server.processor()
                pages.append(_view(chromium, server, path, *said, content))
                used.append(server.processor() - before)
        if said:
            _row(f"cold {name}, said", pages, empties, seen=0)
        _row(f"cold {name}", pages, empties, min(used))


def _loading(page: Page) -> None:
    page.get_by_text(_LOADING).first.wait_for(timeout=_PATIENCE)


def warm(
    chromium: Browser, server: Server, nothing: Server, repeats: int, names: list[str]
) -> None:
    """Views by a server that has shown something."""
    _empty(chromium, nothing)
    for name in names:
        path, seen = _PAGES[name]
        pages, empties, used = [], [], []
        for _ in range(repeats + 1):
            before = server.processor()
            pages.append(_view(chromium, server, path, seen))
            used.append(server.processor() - before)
            empties.append(_empty(chromium, nothing))
        _row(f"first {name}", pages[:1], empties[:1], used[0])
        _row(f"again {name}", pages[1:], empties[1:], min(used[1:]))


def clicks(chromium: Browser, server: Server, spike: tuple[int, int], repeats: int) -> None:
    """From a click on a cell to its detail: of the whole run, and of single steps."""
    step, layer = spike
    near = f"steps={step - 40}-{step + 40}&layers={max(layer - 20, 0)}-{layer + 20}"
    for what, query in (("whole run", ""), ("single steps", f"?{near}")):
        for number in range(repeats):
            context = chromium.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.goto(f"{server.address}/locate{query}")
            _canvases(page, 1)
            page.get_by_text("Selected:").or_(
                page.get_by_text("Selection against")
            ).first.wait_for()
            page.wait_for_timeout(4_000)  # until the page has come to rest: a person looks first
            canvas = page.locator("canvas.marks").first
            box = canvas.bounding_box()
            assert box is not None
            place = {"x": box["width"] * (0.5 + 0.07 * number), "y": box["height"] * 0.5}
            before, started = server.processor(), time.perf_counter()
            canvas.click(position=place)
            page.get_by_role("heading", name=" at step ").first.wait_for(timeout=_PATIENCE)
            seconds, used = time.perf_counter() - started, server.processor() - before
            print(
                f"click {number + 1}, {what:<21}{seconds:9.2f}{'':18}{used:9.2f}{'':18}"
                f"{os.getloadavg()[0]:8.1f}",
                flush=True,
            )
            context.close()


def viewers(chromium: Browser, server: Server, number: int) -> bool:
    """Several at once; whether every chart had something in it."""
    contexts = [chromium.new_context() for _ in range(number)]
    pages = [context.new_page() for context in contexts]
    started = time.perf_counter()
    wanted = {"timeline": 3, "locate": 1}
    for path, canvases in wanted.items():
        for page in pages:
            page.goto(f"{server.address}/{path}", wait_until="commit")
        for page in pages:
            _canvases(page, canvases)
    seconds = time.perf_counter() - started
    inked = []
    for path, canvases in wanted.items():
        for page in pages:
            page.goto(f"{server.address}/{path}")
            _canvases(page, canvases)
            page.wait_for_timeout(500)
            inked += page.evaluate(_INKED)
    for context in contexts:
        context.close()
    sound = min(inked) >= _FEWEST_COLOURS
    print(
        f"{number} viewers at once, two pages each: {seconds:.1f} s; {len(inked)} charts, "
        f"{'none is' if sound else 'some are'} blank (colours: {min(inked)} to {max(inked)})"
    )
    return sound


def refreshes(
    chromium: Browser, server: Server, run: Path, layers: int, last: int, number: int, path: str
) -> None:
    """Memory of the server and of the page while the run grows and the page follows."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.address + path)
    print(f"refreshes of {path}, and MiB of the server and of the page's objects after them")
    for turn in range(number + 1):
        step = last + turn + 1
        publish_step(run, step, layers)
        page.get_by_text(f"newest step {step:,}").first.wait_for(timeout=_PATIENCE)
        if turn % max(number // 4, 1) == 0:
            page.request_gc()
            heap = page.evaluate("() => performance.memory.usedJSHeapSize") / 2**20
            print(f"{turn:>8}{server.memory():9.0f}{heap:9.0f}", flush=True)
    context.close()


def newest(run: Path) -> int:
    """The newest step of a run."""
    with RunReader(run) as reader:
        return int(reader.rows("SELECT max(step) FROM steps")[0][0])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--tensors", type=int, default=2_500, help="digested at each step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--refreshes", type=int, default=0)
    parser.add_argument(
        "--pages", nargs="+", choices=_PAGES, help="to show; all of them by default"
    )
    parser.add_argument("--page", default="/", help="that is refreshed")
    parser.add_argument("--no-cold", action="store_true", help="leave out the cold starts")
    parser.add_argument("--no-warm", action="store_true", help="leave out all that follows them")
    parser.add_argument("--run", type=Path, help="where the run is, or is made and stays")
    asked = parser.parse_args()
    names = asked.pages or list(_PAGES)
    with tempfile.TemporaryDirectory(prefix="sdc-guard-pages-") as name:
        folder = Path(name)
        run = asked.run or folder / "run"
        spike = (asked.steps * 2 // 3, min(asked.layers // 3, asked.tensors - 1))
        if not run.exists():
            make(run, asked.layers, asked.steps, asked.tensors)
        print(line(machine()))
        print(f"{asked.layers:,} layers × {asked.steps:,} steps, {asked.tensors:,} digested")
        print(f"{'':<30}{'seconds':^27}{'':9}{'CPU of the tab':^18}")
        print(
            f"{'':<30}{'page':>9}{'empty':>9}{'above':>9}"
            f"{'server':>9}{'page':>9}{'empty':>9}{'load':>8}"
        )
        with browser() as chromium:
            if not asked.no_cold:
                cold(chromium, run, folder, asked.repeats, names)
            sound = True
            if not asked.no_warm:
                with dashboard(run) as server, empty_app(folder) as nothing:
                    warm(chromium, server, nothing, asked.repeats, names)
                    clicks(chromium, server, spike, asked.repeats)
                    sound = viewers(chromium, server, 4)
            if asked.refreshes:
                with dashboard(run) as server:
                    last = newest(run)
                    refreshes(
                        chromium, server, run, asked.layers, last, asked.refreshes, asked.page
                    )
        print(line(machine()))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
