"""Starts Streamlit as `sdc-guard dashboard` does: `serve.py run app/main.py OPTIONS -- RUN…`."""

import importlib
import sys
from pathlib import Path

from streamlit import net_util
from streamlit.web import cli

# as in main.py: where the packages are not installed
_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

_FIRST = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "duckdb",
    "altair",
    "sdc_guard.store.opening",
    "forensics.journal",
    "forensics.sessions.home",
    "forensics.wording",
    "forensics.watched",
)
_LATER_SECONDS = 15.0  # the first page is shown by then


def _nowhere() -> None:
    """In place of a look-up of this machine's public address, which asks a web site for it."""


def _load() -> None:
    """Load what every page needs before a browser waits for it, and what some need soon after."""
    for name in _FIRST:
        importlib.import_module(name)
    importlib.import_module("app.loading").of_server.later(_LATER_SECONDS)


if __name__ == "__main__":
    net_util.get_external_ip = _nowhere
    _load()
    cli.main()
