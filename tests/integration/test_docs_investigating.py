"""docs/investigating.md shows what the commands print."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import preloaded
import pytest
import torch
from conftest import ROOT

from forensics.calibration import settings_that_differ
from sdc_guard.signals.environment import environment_fingerprint
from sdc_guard.store.run_file import RunFile

sys.path.insert(0, str(ROOT / "tests"))
from docs_examples import Example, Shell, console_examples, run_examples


def test_every_output_of_the_page_is_that_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(ROOT / "sample_runs", tmp_path / "sample_runs")
    text = (ROOT / "docs" / "investigating.md").read_text(encoding="utf-8")
    examples = [one for one in console_examples(text) if _repeats_here(one)]
    wrong = run_examples(examples, tmp_path, Shell(python=preloaded.python()))
    assert not wrong, "\n\n".join(wrong)


def _repeats_here(example: Example) -> bool:
    """A replay has the recorded bits only where versions and processor are those of the run."""
    if not example.command.startswith("sdc-bisect verify"):
        return True
    model = torch.nn.Linear(1, 1)
    here = environment_fingerprint(torch.optim.AdamW(model.parameters()), 1, model)
    run = RunFile.read(ROOT / "sample_runs" / "recorded" / "clean").environment()
    kept = set(run) - {"layout", "optimizer_flags"}  # of the script, which are the same
    return not settings_that_differ({name: run[name] for name in kept}, here)
