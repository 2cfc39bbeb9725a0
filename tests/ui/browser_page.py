"""What is measured of a page in a browser: its contrast, width, keys and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page

_RESTS: Final = """() => document.querySelector("[data-testid=stApp]")
    ?.getAttribute("data-test-script-state") === "notRunning"
    && !document.querySelector("[data-testid=stSkeleton], [data-testid=stSpinner]")
    && !!document.querySelector("[data-testid=stHeading]")"""
_MAIN: Final = "document.querySelector('[data-testid=stMain]')"
WIDE: Final = 1280  # pixels that a page has, if nobody says otherwise
NARROW: Final = 700
_LOOKS: Final = 8
_TALLEST: Final = 6_000  # pixels of a picture
# Of each text: the ratio of WCAG 2 of its colour to what lies below, opacities counted.
_FAINT: Final = """() => {
    const parse = text => {
        const found = text.match(/[\\d.]+/g).map(Number);
        return [...found.slice(0, 3), found.length > 3 ? found[3] : 1];
    };
    const over = (top, below) =>
        [...[0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3])), 1];
    const luminance = colour => {
        const [red, green, blue] = colour.slice(0, 3).map(part => part / 255).map(
            part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const faint = {};
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const text = texts.currentNode.textContent.trim();
        if (!text || !element.getClientRects().length || element.closest("style, script, noscript"))
            continue;
        const style = getComputedStyle(element);
        if (style.visibility === "hidden") continue;
        const behind = [];
        let opacity = 1;
        for (let at = element; at; at = at.parentElement) {
            behind.unshift(parse(getComputedStyle(at).backgroundColor));
            opacity *= Number(getComputedStyle(at).opacity);
        }
        const page = behind.reduce((below, top) => over(top, below), [255, 255, 255, 1]);
        const colour = parse(style.color);
        colour[3] *= opacity;
        const [low, high] = [luminance(over(colour, page)), luminance(page)].sort((a, b) => a - b);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < (large ? 3 : 4.5)) faint[text.slice(0, 40)] = ratio;
    }
    return faint;
}"""
# What has the focus, kept with how it looks.
_STOP: Final = """async () => {
    // what shows the focus may be drawn by a script, and fade in
    await new Promise(drawn => setTimeout(() => requestAnimationFrame(drawn), 60));
    window.look = at => {
        const seen = [];
        for (let up = at, n = 0; up && n < 5; up = up.parentElement, n++) {
            const style = getComputedStyle(up);
            seen.push([style.outline, style.boxShadow, style.borderColor, style.backgroundColor,
                style.textDecoration, style.opacity, style.color].join());
        }
        return seen.join(";");
    };
    window.stops ??= [];
    const at = document.activeElement;
    if (!at || at === document.body || window.stops.some(stop => stop.at === at)) return false;
    window.stops.push({at, focused: window.look(at)});
    return true;
}"""
# All that had it: name, and whether it looked another way then than it does now.
_STOPS: Final = """() => {
    document.activeElement.blur();
    return window.stops.map(({at, focused}) => [
        at.getAttribute("aria-label") || at.innerText?.trim().split("\\n").pop()
            || at.getAttribute("data-testid") || at.tagName,
        at.tagName, focused !== window.look(at)]);
}"""


def settle(page: Page, patience: float = 60_000) -> None:
    """Wait until nothing is being drawn; charts fit themselves to the page once more."""
    page.wait_for_function(_RESTS, timeout=patience)
    page.wait_for_timeout(400)


def whole(page: Page, file: Path) -> None:
    """A picture of all of the page, which scrolls within itself."""
    size = page.viewport_size
    assert size is not None
    tall = min(max(page.evaluate(f"{_MAIN}.scrollHeight"), size["height"]), _TALLEST)
    page.set_viewport_size({"width": size["width"], "height": tall})
    page.wait_for_timeout(400)
    page.screenshot(path=file)
    page.set_viewport_size(size)


def keep(
    page: Page, pictures: Path | None, name: str, widths: tuple[int, ...] = (WIDE, NARROW)
) -> None:
    """Look at the page as it is when nothing is being drawn, and at a narrow one.

    Each text on it has the contrast that it needs, each chart a name, and nobody scrolls sideways.
    Where there is a folder for pictures, it gets one of each width.
    """
    settle(page)
    assert "Traceback" not in page.inner_text("body")
    assert faint(page) == {}
    assert all(charts_in_words(page))
    before = page.viewport_size
    assert before is not None
    for width in widths:
        if width != before["width"]:
            page.set_viewport_size({"width": width, "height": before["height"]})
            page.wait_for_timeout(400)
        if pictures is not None:
            whole(page, pictures / f"{name}{'' if width == WIDE else '-narrow'}.png")
        assert sideways(page) == 0, (name, width)
    page.set_viewport_size(before)


def sideways(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    wide: int = page.evaluate(f"{_MAIN}.scrollWidth - {_MAIN}.clientWidth")
    return wide


def faint(page: Page) -> dict[str, float]:
    """Texts of less contrast than WCAG 2 asks for at level AA, with what they have.

    What fades only while it is being drawn again has it the next time.
    """
    found: dict[str, float] = page.evaluate(_FAINT)
    for _ in range(_LOOKS):
        if not found:
            break
        page.wait_for_timeout(400)
        again: dict[str, float] = page.evaluate(_FAINT)
        found = {text: ratio for text, ratio in again.items() if text in found}
    return found


def charts_in_words(page: Page) -> list[str | None]:
    """The accessible name of each chart."""
    charts = page.get_by_test_id("stVegaLiteChart").all()
    return [chart.get_attribute("aria-label") for chart in charts]


def by_keys(page: Page, most: int = 120) -> list[tuple[str, str, bool]]:
    """What Tab reaches, in its order: name, tag, and whether the focus is seen there."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if not page.evaluate(_STOP):
            break
    page.wait_for_timeout(300)  # until colours have faded
    found: Any = page.evaluate(_STOPS)
    return [(str(name), str(tag), bool(seen)) for name, tag, seen in found]
