"""The shape of the house: which way imports run, and what the public names are."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sdc_guard", "forensics", "app")
MAY_IMPORT = {
    "sdc_guard": {"sdc_guard"},
    "forensics": {"sdc_guard", "forensics"},
    "app": {"sdc_guard", "forensics", "app"},
}
FORBIDDEN = {
    "sdc_guard": {"streamlit", "sklearn", "matplotlib", "altair", "jinja2"},
    "forensics": {"streamlit", "sklearn", "matplotlib", "altair", "jinja2"},
    "app": set(),
}
# what scores a campaign, or is its model, and no training script imports; the report's figures
CAMPAIGN = ROOT / "sdc_guard" / "campaign"
REPORTING = ROOT / "forensics" / "reporting"
# the figure of a plan, drawn by a command of its own
PLANNING = ROOT / "sdc_guard" / "archive" / "planning"
LATE = {
    CAMPAIGN: {"sklearn", "matplotlib"},
    REPORTING: {"matplotlib", "jinja2", "markupsafe"},
    PLANNING: {"matplotlib"},
}
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Top-level names of absolute imports anywhere in a file."""
    return frozenset(imported_by(ast.walk(tree(path))))


def imported_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level names of absolute imports among these statements."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    names = imported(path)
    assert names & set(PACKAGES) <= MAY_IMPORT[package]
    assert not names & (FORBIDDEN[package] - imported_late(path))


def imported_late(path: Path) -> set[str]:
    """What a file may import inside its functions."""
    return next((names for folder, names in LATE.items() if path.is_relative_to(folder)), set())


@pytest.mark.parametrize(
    "path",
    [path for folder in LATE for path in sorted(folder.rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_campaigns_and_reports_import_what_is_heavy_only_where_it_is_used(path: Path) -> None:
    body = tree(path).body
    assert not imported_by(body) & imported_late(path)


def test_click_only_in_the_command_lines() -> None:
    users = {path for path in SOURCES if "click" in imported(path)}
    folders = {ROOT / package / "commands" for package in ("sdc_guard", "forensics")}
    commands = {path for path in users if path.parent in folders}
    assert users - commands == {ROOT / "sdc_guard" / "cli.py", ROOT / "forensics" / "cli.py"}


def test_detectors_know_neither_torch_nor_files() -> None:
    for path in (ROOT / "sdc_guard" / "detect").glob("*.py"):
        assert not imported(path) & {"torch", "duckdb", "pyarrow", "pathlib", "os"}, path


def test_no_module_with_a_name_that_says_nothing_or_shadows_a_package() -> None:
    names = {path.stem for path in SOURCES}
    assert not names & {"utils", "util", "common", "helpers", "misc"}
    assert not {path.stem for path in (ROOT / "app").rglob("*.py")} & {"forensics", "sdc_guard"}
    assert not (ROOT / "app" / "pages").exists()


def test_the_public_names_are_frozen() -> None:
    import sdc_guard

    assert sdc_guard.__all__ == [
        "Alert",
        "Guard",
        "Injector",
        "RunReader",
        "SdcGuardError",
        "TrainingHalted",
        "load_checkpoint",
    ]
    assert all(getattr(sdc_guard, name) is not None for name in sdc_guard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Gard'"):
        _ = sdc_guard.Gard


@pytest.mark.parametrize("module", ["sdc_guard.cli", "forensics.cli"])
def test_help_starts_without_torch_and_duckdb(module: str) -> None:
    heavy = {"torch", "duckdb", "numpy", "pyarrow", "numba", "msgpack", "xxhash"}
    code = f"import {module}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
