"""What the documents show runs, and the tests that they name are there."""

from __future__ import annotations

import math
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import ROOT, blocks
from endpoint import endpoint

from sdc_guard.delivery.guard_state import GuardState
from sdc_guard.delivery.metrics import metrics_of
from sdc_guard.delivery.run_metrics import metrics_of_runs
from sdc_guard.inject.fault import CHANGES, PATTERNS, RECURRENCES, SITES
from sdc_guard.inject.journal import read_journal
from sdc_guard.inject.plan_file import read_plan
from sdc_guard.watch.status import RunStatus

TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    named = set(
        re.findall(r"`(?:test_\w+\.py::)?(test_\w+)`", document.read_text(encoding="utf-8"))
    )
    missing = {name for name in named if f"def {name}(" not in TESTS}
    assert not missing


def texts(document: str, language: str) -> list[str]:
    """The code blocks of a document in one language."""
    return [block.text for block in blocks(ROOT / document) if block.language == language]


def test_the_examples_of_alerts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "*")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    names: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with endpoint() as server, socket.socket() as free:
        monkeypatch.setenv("ALERTS_URL", server.url)
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("LOCAL_RANK", str(free.getsockname()[1] - 9464))
        free.close()
        for example in texts("docs/alerts.md", "python"):
            exec(example, names)  # its own text
        guard, webhook = names["guard"], names["webhook"]
        try:
            assert names["server"].port
            model.weight.grad = torch.full_like(model.weight, math.nan)
            optimizer.step()
            guard.flush()
        finally:
            guard.close()
            webhook.close()
            names["server"].close()
        (body,) = server.bodies()
        assert "nonfinite" in body["text"]
        assert any(record.name == "training" for record in caplog.records)


def test_the_metrics_in_a_document_are_those_that_are_served() -> None:
    text = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    state = GuardState("r", 0, 1, 1, 1, 1, 1, 1, {("norm", "suspect"): 1})
    status = RunStatus("r", "ended", 1.0, 1, 1.0, 1.0, (("norm", "suspect", 1),))
    served = {
        sample.name
        for family in (*metrics_of(state), *metrics_of_runs([status]))
        for sample in family.samples
    }
    assert set(re.findall(r"sdc_guard_\w+", text)) == served


def test_the_examples_of_the_injector_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    names: dict[str, Any] = {"model": model, "optimizer": optimizer}
    attach, tell = texts("docs/injector.md", "python")
    exec(attach, names)  # its own text
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    exec(tell, names)
    names["guard"].close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["2", "weight"], ["3", "activation"]]
    assert [record.step for record in read_journal(tmp_path / "runs" / "trial")] == [2, 3]


def test_the_plan_of_the_injectors_page_is_read(tmp_path: Path) -> None:
    (text,) = texts("docs/injector.md", "toml")
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    plan = read_plan(tmp_path / "plan.toml")
    assert (plan.seed, [fault.site for fault in plan.faults]) == (3, ["weight", "activation"])


def test_the_injectors_page_names_every_site_change_and_pattern() -> None:
    text = (ROOT / "docs/injector.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    named = {word.strip("` ") for row in rows for word in row.split(",")}
    assert {*SITES, *CHANGES, *PATTERNS, *RECURRENCES} <= named
