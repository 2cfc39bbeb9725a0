"""Numbers, folders and files that mean nothing are refused in one line; JSON has no bare NaN."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from session_archives import call, made

from sdc_guard.commands.group import json_text

ABSURD = ("nan", "inf", "-inf", "-1", "1e308")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return made(tmp_path / "archive", (10, 20, 30))


@pytest.mark.parametrize(
    ("command", "option", "values"),
    [
        ("run", "--cost", ABSURD),
        ("run", "--confidence", (*ABSURD, "0.5", "1")),
        ("run", "--false-positive", (*ABSURD, "0.5")),
        ("run", "--false-negative", ABSURD),
        ("run", "--jobs", ("0", "-1", "nan", "9" * 30)),
        ("run", "--repeat", ("0", "nan", "9" * 30)),
        ("run", "--good", ("-1", "nan", "9" * 30)),
        ("run", "--attempt", ("-1", "9" * 30)),
        ("start", "--bad", ("-1", "inf", "9" * 30)),
        ("start", "--confidence", ABSURD),
        ("scan", "--jobs", ("0", "9" * 30)),
        ("verify", "--from", ("-1", "9" * 30)),
        ("verify", "--to", ("-1", "nan")),
    ],
)
def test_a_number_that_no_search_can_mean(
    archive: Path, command: str, option: str, values: tuple[str, ...]
) -> None:
    for value in values:
        found = call(command, archive, option, value, "--json")
        assert (found.code, found.err) == (2, "")
        assert option in found.json["error"]["what"]


def test_json_is_made_of_any_value() -> None:
    values = {"a": math.nan, "b": [math.inf, -math.inf], "c": b"\x01", "d": Path("x"), "e": {1: 2}}
    found = json.loads(json_text("x", **values), parse_constant=pytest.fail)
    assert found == {
        "schema": {"name": "x", "version": 1},
        "a": "NaN", "b": ["Infinity", "-Infinity"], "c": "01", "d": "x", "e": {"1": 2},
    }  # fmt: skip


@pytest.mark.parametrize("named", ["", " ", "https://x/y", "s3://bucket/y"])
@pytest.mark.parametrize("command", ["run", "start", "status", "report"])
def test_a_session_is_kept_in_a_folder_of_this_machine(
    archive: Path, command: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = call(command, archive, "--session", named)
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["archive"]


def test_a_report_goes_to_stdout_for_a_dash(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("report", archive, "-o", "-").out.startswith("# ")
    html = call("report", archive, "-o", "-", "--format", "html")
    assert html.out.startswith("<!")
    assert [one.name for one in tmp_path.iterdir()] == ["archive"]


def test_a_report_has_a_format_that_its_suffix_says(archive: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    refused = call("report", archive, "-o", file)
    assert (refused.code, refused.out) == (2, "")
    assert "--format" in refused.err
    assert not file.exists()
    assert call("report", archive, "-o", file, "--format", "md").code == 0
    assert file.read_text().startswith("# ")


def test_a_report_that_cannot_be_written_says_so_in_its_object(
    archive: Path, tmp_path: Path
) -> None:
    file = tmp_path / "none" / "report.json"
    found = call("report", archive, "--json", "-o", file)
    assert found.code == 2
    assert found.json["error"]["where"] == str(file)
    assert found.json["schema"]["name"] == "sdc-bisect.report"
