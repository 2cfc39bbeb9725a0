"""sdc-guard plan: what it prints, and what it measures of runs and checkpoints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import traces
from click.testing import CliRunner, Result

from sdc_guard.archive.convictions import Conviction, add_conviction
from sdc_guard.archive.planning import sources
from sdc_guard.archive.planning.chart import text_chart
from sdc_guard.archive.planning.latency import log_uniform
from sdc_guard.archive.planning.spacing import ages
from sdc_guard.archive.sealing.listed import Listed, list_sealed
from sdc_guard.cli import main
from sdc_guard.errors import ArchiveIncomplete, UsageError
from sdc_guard.store.run_file import Attempt

ROOT = Path(__file__).resolve().parents[2]
MODEL = ["--parameters", "70e9", "--devices", "512", "--incidents", "1", "--stall", "5s"]
DAY = 86_400.0


def plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def object_of(*arguments: str | Path) -> dict[str, Any]:
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_example_of_the_document_is_what_is_printed() -> None:
    text = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
    command, printed = re.findall(
        r"^```\n\$ sdc-guard (.*?)\n```\n\n```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )[0]
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0
    assert result.stdout == printed


def test_json_has_the_numbers_with_units_and_origins() -> None:
    found = object_of(*MODEL)
    assert found["schema"] == {"name": "sdc-guard.plan", "version": 1}
    assert found["checkpoint"]["bytes"] == 420e9
    assert found["checkpoint"]["write_seconds"] == 42
    assert found["keep"]["count"] == len(found["keep"]["ages_seconds"]) == 303
    assert found["inputs"]["devices"] == {
        "value": 512, "unit": "", "origin": "given", "why": "",
    }  # fmt: skip
    assert found["inputs"]["price"]["origin"] == "assumed"
    assert found["inputs"]["price"]["unit"] == "dollars per GB and month"
    assert found["dollars_per_month"]["storage"] == pytest.approx(303 * 8.40)
    assert found["cache"] is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--size", "420"], 2),
        (["--size", "1GB"], 2),
        (["--size", "1GB", "--devices", "8", "--latency", "trace"], 2),
        (["no/such/checkpoint", "--devices", "8"], 2),
        (["--size", "1GB", "--devices", "8", "-o", "plan.txt"], 2),
        (["--size", "1GB", "--devices", "8", "-o", "no/such/folder/plan.svg"], 2),
    ],
)
def test_errors_are_one_line_or_one_object(arguments: list[str], code: int) -> None:
    result = plan(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("sdc-guard: ")
    assert result.stderr.count("\n") == 1
    told = json.loads(plan(*arguments, "--json").stdout)
    assert told["schema"]["name"] == "sdc-guard.plan"
    assert told["error"]["what"]


def test_the_chart_shows_where_checkpoints_are_kept() -> None:
    latency = log_uniform(3600.0, 100 * DAY)
    kept = ages(latency, 30, 1800.0)
    density, counts, labels, _ = text_chart(latency, kept, 78)
    assert set(density[10:]) == {"█"}
    shown = [int(c) for c in counts[10:] if c not in " +"]
    assert sum(shown) == 29
    assert "|1 h" in labels
    assert "|30 d" in labels
    assert all(len(line) <= 78 for line in (density, counts, labels))
    assert all(line.isascii() for line in text_chart(latency, kept, plain=True))


@pytest.mark.parametrize("times", [("72min", "100d"), ("1s", "1.1s"), ("1ms", "10y")])
@pytest.mark.parametrize("keep", ["1", "2", "50"])
def test_charts_of_odd_plans_are_drawn(times: tuple[str, str], keep: str, tmp_path: Path) -> None:
    latency = f"{times[0]}..{times[1]}"
    drawn = tmp_path / "plan.svg"
    result = plan(*MODEL, "--latency", latency, "--keep", keep, "-o", drawn)
    assert result.exit_code == 0, result.output
    assert drawn.stat().st_size > 1000


def test_the_same_plan_is_the_same_figure(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert plan(*MODEL, "-o", tmp_path / name).exit_code == 0
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<svg" in first


def test_a_terminal_of_ascii_gets_ascii() -> None:
    result = CliRunner(charset="ascii").invoke(main, ["plan", *MODEL])
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    assert "latency   #" in result.stdout


def test_a_figure_of_a_million_checkpoints_stays_small(tmp_path: Path) -> None:
    drawn = tmp_path / "plan.svg"
    many = ["--keep", "1000000", "--latency", "1s..1y"]
    arguments = ["--size", "1MB", "--devices", "8", "--every", "10s", *many]
    assert plan(*arguments, "-o", drawn).exit_code == 0
    assert drawn.stat().st_size < 2e6


def filled(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_the_size_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path / "hf/checkpoint-900/model.safetensors", 100)
    filled(tmp_path / "hf/checkpoint-1000/model.safetensors", 300)
    filled(tmp_path / "hf/checkpoint-1000/part/optimizer.pt", 50)
    filled(tmp_path / "hf/notes.txt", 7)
    found = object_of(tmp_path / "hf", "--devices", "1")
    assert found["inputs"]["size"]["value"] == 350
    assert found["inputs"]["size"]["origin"] == "measured"
    assert "checkpoint-1000" in found["inputs"]["size"]["why"]
    alone = object_of(tmp_path / "hf/checkpoint-900", "--devices", "1")
    assert alone["inputs"]["size"]["value"] == 100
    one = object_of(tmp_path / "hf/checkpoint-900/model.safetensors", "--devices", "1")
    assert one["inputs"]["size"]["value"] == 100


def test_a_sealed_archive_counts_what_has_a_manifest(tmp_path: Path) -> None:
    filled(tmp_path / "step=000010/state.pt", 100)
    filled(tmp_path / "step=000010/manifest.json", 20)
    filled(tmp_path / "step=000020/state.pt", 40)  # not finished
    assert sources.measured_of(tmp_path)["size"].number == 100


def test_a_checkpoint_whose_parts_are_numbered_is_one(tmp_path: Path) -> None:
    filled(tmp_path / ".metadata", 10)
    filled(tmp_path / "step_1.distcp", 100)
    filled(tmp_path / "step_2.distcp", 100)
    assert sources.measured_of(tmp_path)["size"].number == 210


@pytest.mark.parametrize("content", [[], ["checkpoint-5/empty.pt"]])
def test_an_archive_without_a_size_is_told(content: list[str], tmp_path: Path) -> None:
    for name in content:
        filled(tmp_path / name, 0)
    with pytest.raises(ArchiveIncomplete, match="--size"):
        sources.measured_of(tmp_path)


def incident(step: int, number: int, opened: int, *, proven: bool, **columns: Any) -> Any:
    evidence = json.dumps({"proven": proven})
    found = {"step": step, "incident": number, "opened": opened, "verdict": "undetermined"}
    return "incidents", {**found, "evidence": evidence, **columns}


def recorded(folder: Path) -> Path:
    """40 steps of 10 s, but steps 20 and later come an hour later."""
    run = traces.make_run(folder, Attempt(1, 0, 0.0))
    rows = [
        traces.step(n, time=10.0 * n + (3600.0 if n >= 20 else 0.0), step_seconds=10.0)
        for n in range(40)
    ]
    told = [
        incident(5, 1, 5, proven=True),  # in the same step
        incident(25, 2, 15, proven=True),  # 100 s and an hour
        incident(30, 2, 15, proven=True),  # the same, grown
        incident(35, 3, 35, proven=False),  # a statistic proves nothing
    ]
    traces.write(run, [*rows, *told])
    return run


def test_latencies_are_measured_of_a_runs_proven_incidents(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    assert sorted(sources.latencies_of(run)) == pytest.approx([10.0, 3700.0])
    (run / "archive").mkdir()
    for attempt, corrupt in ((1, 12), (1, 20), (2, 14)):  # 20 came later, 14 in another attempt
        add_conviction(run / "archive", Conviction(attempt, corrupt - 1, corrupt, "a replay"))
    assert sorted(sources.latencies_of(run)) == pytest.approx([10.0, 3730.0])


def test_a_plan_from_a_run(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    filled(run / "archive/step=000030/state.pt", 10**6)
    filled(run / "archive/step=000030/manifest.json", 10)
    found = object_of(run, "--devices", "4", "--latency", "trace")
    assert found["inputs"]["size"]["value"] == 10**6
    assert found["inputs"]["step_time"]["value"] == 10.0
    assert found["inputs"]["latency"]["origin"] == "measured"
    assert found["interval"]["steps"] >= 1
    given = object_of(run, "--devices", "4", "--size", "5GB", "--step-time", "2s")
    assert given["inputs"]["size"]["value"] == 5e9
    assert given["inputs"]["step_time"]["value"] == 2.0


def test_a_run_whose_script_saves_by_itself_has_the_size_of_what_was_sealed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    with pytest.raises(ArchiveIncomplete, match="--size"):
        sources.measured_of(run)
    for step in (10, 30, 20):
        saved = filled(tmp_path / f"saved/it{step}.pt", 1000 + step)
        list_sealed(run, Listed(saved, step, 1))
    assert sources.measured_of(run)["size"].number == 1030
    (tmp_path / "saved/it30.pt").unlink()
    assert sources.measured_of(run)["size"].number == 1020
    filled(run / "archive/step=000005/state.pt", 70)
    filled(run / "archive/step=000005/manifest.json", 10)
    assert sources.measured_of(run)["size"].number == 70


def test_a_run_without_a_proven_incident_has_no_latency(tmp_path: Path) -> None:
    run = traces.make_run(tmp_path / "run")
    traces.write(run, [traces.step(1, time=1.0, step_seconds=1.0)])
    with pytest.raises(UsageError, match="no proven incident"):
        sources.latencies_of(run)
