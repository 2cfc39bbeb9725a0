"""Servers of pages and a browser for the dashboard's benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

_ROOT: Final = Path(__file__).resolve().parents[1]
_READY: Final = 120.0  # seconds that a server may take to answer
_EMPTY: Final = 'import streamlit as st\nst.set_page_config(layout="wide")\nst.title("nothing")\n'
_OPTIONS: Final = ("--server.headless=true", "--server.fileWatcherType=none")


@dataclass(frozen=True)
class Server:
    """A server of pages that answers."""

    address: str
    process: int

    def memory(self) -> float:
        """Resident memory in MiB."""
        return self._read("status", "VmRSS:") / 1024

    def processor(self) -> float:
        """Processor seconds of all its threads so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self, name: str, key: str) -> int:
        lines = Path(f"/proc/{self.process}/{name}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))


@contextlib.contextmanager
def dashboard(run: Path) -> Iterator[Server]:
    """`sdc-guard dashboard RUN`."""
    with _served(["-m", "sdc_guard.cli", "dashboard", str(run), "--port"]) as server:
        yield server


@contextlib.contextmanager
def empty_app(folder: Path) -> Iterator[Server]:
    """An app that shows a title and nothing else; its script is written into `folder`."""
    script = folder / "empty.py"
    script.write_text(_EMPTY)
    serve = str(_ROOT / "app" / "serve.py")
    with _served([serve, "run", str(script), *_OPTIONS, "--server.port"]) as server:
        yield server


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium.

    Raises:
        SystemExit: there is none on this machine.
    """
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        raise SystemExit("no Chromium on this machine")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=options)
        yield started
        started.close()


@contextlib.contextmanager
def _served(arguments: list[str]) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen(
        [sys.executable, *arguments, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address)
        yield Server(address, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(address: str) -> None:
    end = time.monotonic() + _READY
    while True:
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
