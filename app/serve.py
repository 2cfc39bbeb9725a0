"""Starts Streamlit as `sdc-guard dashboard` does: `serve.py run app/main.py OPTIONS -- RUN…`."""

import importlib
import threading

from streamlit import net_util
from streamlit.web import cli

_FIRST = ("pandas", "pyarrow.compute", "pyarrow.parquet", "duckdb", "altair")
_LATER = "torch"  # which the pages Bisect and Act read checkpoints by; it takes seconds to load
_LATER_SECONDS = 5.0  # the first page is shown by then


def _nowhere() -> None:
    """In place of a look-up of this machine's public address, which asks a web site for it."""


def _load() -> None:
    """Load what every page needs before a browser waits for it, and what some need soon after."""
    for name in _FIRST:
        importlib.import_module(name)
    later = threading.Timer(_LATER_SECONDS, importlib.import_module, [_LATER])
    later.daemon = True
    later.start()


if __name__ == "__main__":
    net_util.get_external_ip = _nowhere
    _load()
    cli.main()
