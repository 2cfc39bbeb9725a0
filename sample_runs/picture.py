"""Draws docs/dashboard.png again: `python sample_runs/picture.py [FILE]`.

The page Timeline of the recorded run `weight_flip`, at the step that the alert names, as Chromium
shows it. It needs the package with `[app,dev]` and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "/timeline?run=weight_flip&step=74"
WIDTH, HEIGHT = 1280, 880
PATIENCE = 120_000  # ms
QUIET = ["--no-sandbox", "--disable-gpu"]


@contextlib.contextmanager
def served(runs: Path) -> Iterator[str]:
    """The dashboard's address while it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sdc_guard.cli", "dashboard", str(runs), "--port", str(port)]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert server.stdout is not None
        if not any(line.strip().startswith("URL:") for line in server.stdout):
            raise SystemExit("the dashboard did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def picture(address: str, chromium: str, file: Path) -> None:
    """Write the picture of the page at this address."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_default_timeout(PATIENCE)
        page.goto(address + ADDRESS)
        page.get_by_role("heading", name="Step 74", exact=True).wait_for()
        page.locator("canvas.marks").nth(2).wait_for()
        page.wait_for_timeout(2_000)  # charts fit themselves to the page once more
        page.mouse.move(0, HEIGHT - 1)
        page.screenshot(path=file)
        browser.close()


def main() -> None:
    """Write the file that is given, or else that of the documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=ROOT / "docs" / "dashboard.png")
    file = parser.parse_args().file
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        raise SystemExit("no chromium on the path")
    with tempfile.TemporaryDirectory() as folder:
        # a copy in a folder of its own: what is looked at is not changed, nor its path shown
        runs = Path(folder) / "runs"
        shutil.copytree(ROOT / "sample_runs" / "recorded", runs)
        with served(runs) as address:
            picture(address, chromium, file)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
