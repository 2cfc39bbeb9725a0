"""The command `sdc-guard check-log`: what it prints, and its exit codes."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sdc_guard.cli import main

SEED = 7


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["check-log", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def answer(*arguments: object) -> dict[str, Any]:
    """The JSON output, read as strictly as other languages read it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    content: dict[str, Any] = json.loads(call(*arguments, "--json").stdout, parse_constant=refuse)
    return content


def healthy_log(path: Path, rows: int = 400, **columns: Any) -> Path:
    """A CSV of a calm run; columns replace those of it, or come in addition."""
    rng = np.random.default_rng(SEED)
    made = {
        "step": np.arange(rows),
        "loss": np.round(2.5 + 0.03 * rng.normal(size=rows), 4),
        "grad_norm": np.round(0.4 * np.exp(0.15 * rng.normal(size=rows)), 4),
    }
    made |= columns
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(made)
        writer.writerows(zip(*(column.tolist() for column in made.values()), strict=True))
    return path


def with_value(path: Path, column: str, row: int, value: object) -> Path:
    """The same log with another value in one row."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    lines[1 + row][lines[0].index(column)] = str(value)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return path


def test_a_calm_log_has_no_incident(tmp_path: Path) -> None:
    path = healthy_log(tmp_path / "log.csv")
    result = call(path)
    assert result.exit_code == 0
    assert "CSV, 400 rows, steps 0 to 399, columns loss, grad_norm" in result.stdout
    assert "no incident" in result.stdout
    content = answer(path)
    assert content["schema"] == {"name": "sdc-guard.check-log", "version": 1}
    assert content["incidents"] == []
    (log,) = content["logs"]
    assert (log["rows"], log["restarts"], log["notes"]) == (400, [], [])
    assert log["columns"]["grad_norm"] == "grad_norm"


def test_an_incident_is_told_in_words_and_as_json(tmp_path: Path) -> None:
    path = with_value(healthy_log(tmp_path / "log.csv"), "grad_norm", 300, 77.5)
    result = call(path)
    assert result.exit_code == 1
    assert "INCIDENT step 300: the gradient norm rises from about 0.3" in result.stdout
    assert "suspects and does not convict" in result.stdout
    (incident,) = answer(path)["incidents"]
    assert {name: incident[name] for name in ("first_step", "last_step", "kind", "peak")} == {
        "first_step": 300, "last_step": 300, "kind": "grad_norm_high", "peak": 77.5,
    }  # fmt: skip
    assert incident["score"] > incident["limit"]


def test_a_value_that_is_not_finite_is_strict_json(tmp_path: Path) -> None:
    """B20: all is well until the last row."""
    path = with_value(healthy_log(tmp_path / "log.csv"), "grad_norm", 399, "nan")
    (incident,) = answer(path)["incidents"]
    assert (incident["kind"], incident["peak"]) == ("grad_norm_not_finite", "NaN")
    assert incident["open_at_end"]
    assert "Replay the first of these steps from the last checkpoint before it" in call(path).stdout


def test_a_log_without_norms_says_so(tmp_path: Path) -> None:
    """B08."""
    path = tmp_path / "trainer_state.json"
    history = [{"loss": 2.0 + 0.01 * math.sin(step), "step": step} for step in range(200)]
    path.write_text(json.dumps({"log_history": history, "global_step": 200}))
    assert "note: no grad norm in these rows: loss only" in call(path).stdout
    assert call(path).exit_code == 0


@pytest.mark.parametrize(
    ("content", "what"),
    [
        # A19 and A20
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12965\n",
         "Git LFS pointer; real content (12,965 bytes) not downloaded"),
        ('{"model_type": "llama"}', "Not a Hugging Face trainer_state: log_history missing"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_one_line(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    result = call(path)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sdc-guard: {what}")
    assert answer(path)["error"]["what"] == what


def test_two_writers_of_one_log_are_judged_apart(tmp_path: Path) -> None:
    """C15: every step twice, losses a little apart."""
    rng = np.random.default_rng(SEED)
    steps = np.repeat(np.arange(656), 2)
    loss = np.repeat(2.5 + 0.05 * rng.normal(size=656), 2) + 0.0005 * rng.normal(size=1312)
    norm = np.repeat(np.exp(0.15 * rng.normal(size=656)), 2)
    path = healthy_log(tmp_path / "log.csv", 1312, step=steps, loss=loss, grad_norm=norm)
    result = call(path)
    assert result.exit_code == 0
    assert "duplicate steps: two writers" in result.stdout
    assert "restart" not in result.stdout
    with_value(path, "loss", 2 * 500 + 1, 9.0)
    (incident,) = answer(path)["incidents"]
    assert (incident["first_step"], incident["writer"]) == (500, 2)


def test_runs_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    runs = np.array(["a", "b"]).repeat(200)
    healthy_log(path, 400, run=runs, step=np.tile(np.arange(200), 2))
    with_value(path, "grad_norm", 350, 99)
    assert call(path, "--run", "a").exit_code == 0
    assert call(path, "--run", "b").exit_code == 1
    (incident,) = answer(path)["incidents"]
    assert (incident["run"], incident["first_step"]) == ("b", 150)
    result = call(path, "--run", "c")
    assert result.exit_code == 2
    assert "no run 'c'; there are: a, b" in result.stderr


def test_many_short_runs_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    runs = np.array([f"r{number:02}" for number in range(30)]).repeat(10)
    healthy_log(path, 300, run=runs, step=np.tile(np.arange(10), 30))
    result = call(path)
    assert result.exit_code == 0
    assert "30 runs without an incident" in result.stdout
    assert "only 10 usable rows of loss" in result.stdout
    assert len(result.stdout.splitlines()) < 8


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    calm, gone = healthy_log(tmp_path / "calm.csv"), tmp_path / "gone.csv"
    result = call(calm, gone)
    assert result.exit_code == 2
    assert "no incident" in result.stdout
    assert "no such file" in result.stderr
    assert answer(calm, gone)["errors"][0]["where"] == str(gone)
    odd = with_value(healthy_log(tmp_path / "odd.csv"), "loss", 200, "inf")
    assert call(calm, gone, odd).exit_code == 1


def test_columns_may_be_named(tmp_path: Path) -> None:
    path = healthy_log(tmp_path / "log.csv", mine=np.full(400, 1.0))
    with_value(path, "mine", 250, 5.0)
    assert call(path).exit_code == 0
    assert call(path, "--loss", "mine").exit_code == 1
    assert call(path, "--loss", "yours").exit_code == 2


@pytest.mark.parametrize("budget", ["0", "1", "-1e-4", "nan"])
def test_a_budget_that_is_none(tmp_path: Path, budget: str) -> None:
    result = call(healthy_log(tmp_path / "log.csv"), "--budget", budget)
    assert result.exit_code == 2
    assert "false incidents a row" in result.stderr


def test_a_smaller_budget_tells_less(tmp_path: Path) -> None:
    path = healthy_log(tmp_path / "log.csv")
    limits = []
    with_value(path, "grad_norm", 300, 1e6)
    for budget in ("1e-3", "1e-4", "1e-6"):
        (incident,) = answer(path, "--budget", budget)["incidents"]
        limits.append(incident["limit"])
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "check-log.md"


def blocks(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for name, content in found if name == language]


def test_the_documents_example_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in blocks("python"):
        exec(example, {})  # its own text
    assert call("history.csv").stdout.splitlines() == blocks("text")[0].splitlines()
