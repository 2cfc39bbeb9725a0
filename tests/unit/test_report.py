"""The answer in words: never more than the result holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from reported import finished, report_on
from traces import make_run, step, turning_steps, write

from forensics.reporting.markdown import markdown
from forensics.result import Result
from forensics.wording import sentence
from sdc_guard.store.run_file import Attempt


def told(command: str, *, clean: int | None, corrupt: int | None, **more: Any) -> str:
    facts = {"exact": True, "proven": True, **more}
    return sentence(Result(command, clean, corrupt, **facts).as_dict())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            told("run", clean=50, corrupt=None),
            "Nothing corrupt was found up to step 50; untestable: none.",
        ),
        (
            told("run", clean=50, corrupt=None, watched=0.04),
            "Clean as far as recorded: nothing corrupt was found up to step 50; untestable: none.",
        ),
        (
            told("run", clean=20, corrupt=30, watched=1.0),
            "Checkpoint 30 is the first corrupt one: bracket (20, 30], proven.",
        ),
        (
            told("run", clean=20, corrupt=30, watched=0.04),
            "Checkpoint 30 is the first corrupt one, as far as recorded: bracket (20, 30], proven.",
        ),
        (
            told("verify", clean=26, corrupt=27, kind="activation", verdict="intermittent", rank=0),
            "Step 27 is the first that differs (proven); class: activation; "
            "verdict: intermittent; rank: 0.",
        ),
        (
            told("verify", clean=20, corrupt=27, exact=False, kind="undetermined", watched=0.04),
            "Step 27 is the first whose record differs (proven), the fault lies in (20, 27]; "
            "class: undetermined; verdict: None; rank: unknown.",
        ),
    ],
)
def test_sentences(text: str, expected: str) -> None:
    assert text == expected


def test_results_from_before_there_were_shares_and_dates(tmp_path: Path) -> None:
    result = Result("run", 50, None, exact=False, proven=False).as_dict()
    del result["watched"]
    run = make_run(tmp_path)
    finished(run, result, at=None)
    finished(run, result, at=1e9)
    text = markdown(report_on(run))
    assert "## Result of `sdc-bisect run`\n" in text
    assert "## Result of `sdc-bisect run` of 2001-09-09 01:46:40 UTC\n" in text
    assert text.count("\nNothing corrupt was found up to step 50") == 2


def test_the_report_says_what_was_not_watched(tmp_path: Path) -> None:
    run = make_run(tmp_path, Attempt(1, 0, 0.0, digest_budget=0.2))
    write(
        run,
        [
            *turning_steps(0, 8),
            step(9, skipped=True),
            ("checkpoints", {"step": 8, "path": "x"}),
            ("events", {"step": 0, "kind": "capture", "detail": "one compiled step"}),
        ],
    )
    text = markdown(report_on(run))
    assert "10 steps recorded (0 to 9), 4 layers, 1 attempt." in text
    assert "1 of them skipped: no update was applied." in text
    # 8 of the 4·9 transitions up to step 9
    assert "22.2 % of the state's transitions from step to step were compared." in text
    assert "| 0 | capture | one compiled step |" in text


def test_a_reason_that_is_repeated_is_told_once(tmp_path: Path) -> None:
    """Of the recorded run with a flipped weight: two checkpoints of one incident."""
    recorded = Path(__file__).parents[2] / "sample_runs" / "recorded" / "weight_flip"
    run = shutil.copytree(recorded, tmp_path / "run")
    _, told = markdown(report_on(run)).split("## Checkpoints")
    rows = {line.split(" | ")[0]: line for line in told.splitlines() if line.startswith("| ")}
    assert "incident open since step 74: step 74: carried_digest" in rows["| 80"]
    assert rows["| 100"].endswith(" | as above |")
    assert "as above" not in rows["| 60"]  # clean, as the one before it, for no reason
