"""Streamlit's test runner, which does for each page what a server does once."""

from __future__ import annotations

import functools

from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import local_script_runner


def share() -> None:
    """From now on it compiles a script once, and asks the installed packages for components once.

    To read what every package says of itself takes as long as a page.
    """
    compiled = ScriptCache()
    local_script_runner.ScriptCache = lambda: compiled  # type: ignore[assignment,misc]
    manifest_scanner.scan_component_manifests = functools.cache(
        manifest_scanner.scan_component_manifests
    )
