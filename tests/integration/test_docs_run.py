"""Commands that documents show, run as they stand on recorded runs and on a small archive."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import preloaded
import pytest
import torch
from docs_examples import Shell, console_examples, run_examples
from documents import DOCUMENTS, ROOT, command_lines, shown

from sdc_guard.ledger import Ledger

RECORDED = ROOT / "sample_runs" / "recorded"
# Other documents' lines need a script, a log or a server of the reader's, or take a training: tests
# of their own run the examples of README's verify, check-log, getting-started and investigating.
OF = {
    "README.md", "docs/alerts.md", "docs/archive-gate.md", "docs/bisecting.md",
    "docs/doctor.md", "docs/planner.md", "docs/recovery.md", "docs/report.md",
    "docs/retention.md", "docs/verdicts.md",
}  # fmt: skip
NOT_HERE = {
    "sdc-guard dashboard": "serves until it is stopped",
    "sdc-guard metrics": "serves until it is stopped",
    "sdc-guard watch runs/": "looks until it is stopped",
    "sdc-guard watch --json runs/": "looks until it is stopped",
    "sdc-guard check-log": "needs a log of the reader's",
    "sdc-guard plan checkpoint-8000": "needs a checkpoint of the reader's",
    "sdc-bisect verify": "trains",
    "sdc-bisect start": "a session: below",
    "sdc-bisect bad": "a session: below",
    "sdc-bisect good": "a session: below",
    "sdc-bisect run archive --executor ray": "starts a cluster",
    "sdc-bisect report --session": "needs a session of the reader's",
}
# what is the reader's own: folders of his cluster, a step
HERE = {"/local/": "local/", "/shared/": "", "50000": "80"}
JUDGE = "import re, sys\nsys.exit(int(re.findall(r'[0-9]+', sys.argv[1])[-1]) >= 1000)\n"


def lines() -> list[tuple[str, list[str]]]:
    found = []
    for path in DOCUMENTS:
        for line, words in command_lines(path) if shown(path) in OF else ():
            if not any(shlex.join(words).startswith(one) for one in NOT_HERE):
                found.append((f"{shown(path)}:{line}", words))
    return found


LINES = lines()


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents' commands name."""
    top = tmp_path_factory.mktemp("documents")
    shutil.copytree(RECORDED / "weight_flip", top / "runs" / "pretrain")
    shutil.copytree(RECORDED / "clean", top / "runs" / "finetune")
    shutil.copytree(RECORDED / "weight_flip", top / "pinned")
    for folder in ("checkpoints", "archive"):
        (top / folder).mkdir()
    for step in (80, 100, 200):
        state = {"step": step, "model": {"w": torch.full((4,), float(step))}}
        torch.save(state, top / "checkpoints" / f"step-{step}.pt")
        torch.save(state, top / f"step-{step}.pt")
    for step in range(100, 1700, 100):
        torch.save({"w": torch.full((3,), float(step))}, top / "archive" / f"checkpoint-{step}.pt")
    for name in ("check.py", "eval.py", "expensive.py"):
        (top / name).write_text(JUDGE)
    Ledger(top / "sdc-ledger.jsonl").strike("GPU-6f2c", "pretrain", 7, "intermittent")
    return top


@pytest.fixture
def folder(laid_out: Path, tmp_path: Path) -> Path:
    """One's own."""
    return Path(shutil.copytree(laid_out, tmp_path / "own"))


@pytest.mark.parametrize("words", [line for _, line in LINES], ids=[name for name, _ in LINES])
def test_the_line_runs(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run = Shell(python=preloaded.python())
    given = []
    for word in words:
        for theirs, ours in HERE.items():
            word = word.replace(theirs, ours)
        given.append(word)
    if "--unpin" in given:
        assert run(["--pin" if word == "--unpin" else word for word in given])[0] == 0
    code, printed = run(given)
    # 1: the run has a fault, and what finds it says so
    finds = given[1] in ("diff", "run", "verify-archive", "watch")
    assert code == 0 or (finds and code == 1), printed
    assert printed


def test_the_lines_are_found_and_none_is_left_out_without_a_reason() -> None:
    assert {name.partition(":")[0] for name, _ in LINES} == OF
    left_out = [
        shlex.join(words)
        for path in DOCUMENTS
        if shown(path) in OF
        for _, words in command_lines(path)
        if any(shlex.join(words).startswith(one) for one in NOT_HERE)
    ]
    assert all(any(line.startswith(one) for line in left_out) for one in NOT_HERE)


def test_the_session_of_the_page_goes_as_it_says(folder: Path) -> None:
    text = (ROOT / "docs" / "bisecting.md").read_text(encoding="utf-8")
    examples = console_examples(text)
    assert [one.expected is not None for one in examples] == [True, False, True, False]
    wrong = run_examples(examples, folder, Shell(python=preloaded.python()))
    assert not wrong, "\n\n".join(wrong)
