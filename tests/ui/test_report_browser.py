"""The report's page in a real Chromium: on light, on dark, and on a narrow screen."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hand_made import corrupt_run
from playwright.sync_api import Browser, sync_playwright

from forensics.reporting.gather import report_of_run
from forensics.reporting.page import page as written
from sdc_guard import RunReader

pytestmark = pytest.mark.browser


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
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with RunReader(corrupt_run(folder / "run")) as reader:
        text = written(report_of_run(reader, str(reader.run), (), (), time.time()))
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_opens_alone_and_is_legible(
    chromium: Browser, report: Path, scheme: str, width: int
) -> None:
    context = chromium.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 800},
    )
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()]
    assert said == []  # nothing that the page's own policy refused
    assert page.get_by_role("heading", level=1).inner_text().startswith("Corrupt, proven: step 27")
    assert page.get_by_role("img", name="What happened, over the steps").is_visible()
    # the page itself never scrolls sideways: wide tables and the figure do, in their frames
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ink, card = page.evaluate(
        """() => {
            const style = getComputedStyle(document.querySelector("section"));
            return [style.color, style.backgroundColor].map(
                text => text.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0));
        }"""
    )
    assert (ink < card) == (scheme == "light")
    assert abs(ink - card) > 450  # of 765
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#act"
    context.close()
