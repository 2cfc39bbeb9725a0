"""What a campaign needs is asked for before it begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sdc_guard.campaign import command
from sdc_guard.cli import main
from sdc_guard.errors import UsageError


def test_a_scikit_learn_that_cannot_be_imported_is_one_line_before_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may well be found: a name alone is no package that works."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    out = tmp_path / "c.duckdb"
    done = CliRunner().invoke(main, ["campaign", str(out), "--quick", "--trials", "1", "--json"])
    assert (done.exit_code, out.exists()) == (2, False)
    error = json.loads(done.stdout)["error"]
    assert error["what"].startswith("scikit-learn is not installed")
    assert error["next"].startswith('pip install ".[campaign]" in a clone of SDC Guard')
    assert "bug" not in done.output


def test_only_the_model_that_needs_it_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    command._check_installed(("gpt",))
    with pytest.raises(UsageError, match="scikit-learn is not installed"):
        command._check_installed(("gpt", "convnet"))
