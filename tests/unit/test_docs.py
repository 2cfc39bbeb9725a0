"""The tests that the documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    named = set(
        re.findall(r"`(?:test_\w+\.py::)?(test_\w+)`", document.read_text(encoding="utf-8"))
    )
    missing = {name for name in named if f"def {name}(" not in TESTS}
    assert not missing
