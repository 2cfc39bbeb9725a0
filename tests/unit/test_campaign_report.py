"""The scoreboard as text, JSON and figure."""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scored_campaign import entries, write_campaign

from sdc_guard.campaign import cells, figure, publish, score
from sdc_guard.campaign.report import BEGIN, END, check_place, markdown, write_into
from sdc_guard.campaign.scoreboard import scoreboard
from sdc_guard.campaign.unseen import unseen
from sdc_guard.cli import main
from sdc_guard.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = write_campaign(tmp_path_factory.mktemp("reported") / "c.duckdb")
    return scoreboard(score.score(path, entries=entries))


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The first table after a heading: cells by the first one of their row."""
    part = text.partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)
    assert table is not None
    lines = [[cell.strip() for cell in line[1:-2].split(" |")] for line in
             table.group().splitlines()]  # fmt: skip
    assert len({len(line) for line in lines}) == 1
    return {line[0]: line[1:] for line in lines[2:]}


def test_the_table_of_sites(numbers: dict[str, Any]) -> None:
    table = rows(markdown(numbers), "### toy, uniform faults")
    # faults, sensor, baseline, digests, checks, manifest, audited, live, replay
    assert table["gradient"] == [
        "4", "50 % (15 to 85)", "50 % (15 to 85)", "0 %", "0 %", "0 %", "–", "50 % (15 to 85)",
        "75 % (30 to 95)",
    ]  # fmt: skip
    assert table["weight"][3] == "100 %"
    assert table["file"][5] == "100 %"
    assert table["activation"][6] == "1 of 1"


def test_the_tables_of_detectors(numbers: dict[str, Any]) -> None:
    text = markdown(numbers)
    budget = rows(text, "## Detectors at the same budget")
    assert budget["frozen maximum"][0] == "250 (44 to 1,288)"
    assert budget["frozen maximum"][1].startswith("29 % (")
    assert budget["frozen maximum"][-2:] == ["1, 1", "1"]
    published = rows(text, "### With their own thresholds")
    assert published["frozen maximum"][:2] == ["10", "0 (0 to 876)"]
    assert rows(text, "Thresholds at the budget:")["frozen maximum"] == ["1.2 (largest)"]


def test_what_stays_unseen_is_said(numbers: dict[str, Any]) -> None:
    lines = "\n".join(unseen(numbers))
    assert (
        "- gradient, uniform: 2 of 4 faults raised no alarm; a replay afterwards proves 1, and 1"
        " stay unseen." in lines
    )
    assert (
        "- activation, uniform: 2 of 2 faults raised no alarm; a replay afterwards proves 1"
        in lines
    )
    assert "Nothing was missed at: weight (uniform), file (uniform)." in lines


def test_the_conditions_are_said(numbers: dict[str, Any]) -> None:
    text = markdown(numbers)
    assert "10 faults were injected into trainings of toy" in text
    assert "8 changed what was trained or saved" in text
    assert "threshold is set to allow one false incident in 10,000 steps" in text
    assert "with the seeds 1, and judged on others with the seeds 2;" in text
    assert "1 trials without a fault: 0 differ" in text
    assert "1 failed: IndexError: 300." in text
    assert "Run with torch 2.x." in text


def test_the_head_claims_the_budget_only_where_there_are_steps_enough_to_show_it(
    numbers: dict[str, Any],
) -> None:
    few = max(one["budget"]["false"]["steps"] for one in numbers["detectors"])
    assert 0 < few < 10_000
    assert f"The {few} healthy steps of the judging runs are too few to show" in markdown(numbers)
    many = copy.deepcopy(numbers)
    many["detectors"][0]["budget"]["false"]["steps"] = 10_000
    head = markdown(many).partition("##")[0]
    assert "threshold allows one false incident in 10,000 steps" in head
    assert "too few" not in head


def test_a_campaign_without_a_fault_that_counts_is_told(numbers: dict[str, Any]) -> None:
    empty = copy.deepcopy(numbers)
    for name in ("sites", "sites_of_all_models", "effects", "kinds", "failed"):
        empty[name] = []
    assert "## Conditions" in markdown(empty)
    assert unseen(empty) == []


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0001, "0.1 %"), (0.004, "0.4 %"), (0.126, "13 %"), (0.999, "99.9 %"),
     (0.99999, "99.9 %"), (1.0, "100 %")],
)  # fmt: skip
def test_a_percentage_is_none_or_all_only_if_it_is(share: float, text: str) -> None:
    assert cells.percent(share) == text


def test_a_cell_does_not_break_its_table() -> None:
    assert cells.table(["a", "b"], [["x|y\nz", 1]]).splitlines()[-1] == "| x\\|y z | 1 |"


def test_a_page_keeps_its_own_text(tmp_path: Path) -> None:
    page = tmp_path / "scoreboard.md"
    write_into(page, "first\n")
    assert page.read_text() == f"# Scoreboard\n\n{BEGIN}\n\nfirst\n\n{END}\n"
    page.write_text("My words.\n" + page.read_text() + "More of them.\n")
    for generated in ("second\n", "third\n"):
        write_into(page, generated)
    assert page.read_text() == (
        f"My words.\n# Scoreboard\n\n{BEGIN}\n\nthird\n\n{END}\nMore of them.\n"
    )


def test_a_page_without_markers_is_refused_and_left(tmp_path: Path) -> None:
    page = tmp_path / "other.md"
    page.write_text("My words.\n")
    with pytest.raises(UsageError, match="no place for the scoreboard"):
        write_into(page, "x")
    assert page.read_text() == "My words.\n"
    page.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        check_place(page)
    check_place(tmp_path / "not there.md")


def test_the_projects_own_page_has_its_place() -> None:
    check_place(ROOT / "docs" / "scoreboard.md")


def test_the_figure_is_the_same_bytes_each_time(numbers: dict[str, Any], tmp_path: Path) -> None:
    one, other = tmp_path / "a.svg", tmp_path / "b.svg"
    assert figure.draw(numbers, one)
    assert figure.draw(json.loads(json.dumps(numbers)), other)
    assert one.read_bytes() == other.read_bytes()
    text = one.read_text()
    ElementTree.fromstring(text)
    assert "dc:date" not in text
    # each series has a colour of its own, and the panel is light
    assert all(colour in text for colour in ("#e69f00", "#0072b2", "#009e73", "#cc79a7"))
    assert "fill: #ffffff" in text


def test_another_result_is_another_figure(numbers: dict[str, Any], tmp_path: Path) -> None:
    changed = copy.deepcopy(numbers)
    changed["sites_of_all_models"][0]["recall"]["sensor"]["recall"]["share"] = 0.5
    figure.draw(numbers, tmp_path / "a.svg")
    figure.draw(changed, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_nothing_to_draw_is_no_figure(numbers: dict[str, Any], tmp_path: Path) -> None:
    assert not figure.draw({**numbers, "sites_of_all_models": []}, tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()


def test_publishing_writes_page_and_figure(tmp_path: Path) -> None:
    file = write_campaign(tmp_path / "c.duckdb")
    page = tmp_path / "docs" / "board.md"
    page.parent.mkdir()
    found = publish.publish(file, page)
    text = page.read_text()
    assert "![Recall by site, with 95 % intervals](board.svg)" in text
    assert (tmp_path / "docs" / "board.svg").exists()
    assert "## The sensor, part by part" in text
    assert found["schema"]["name"] == "sdc-guard.scoreboard"
    json.dumps(found, allow_nan=False)


def test_what_cannot_be_published_is_said_before_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "other.md"
    page.write_text("My words.\n")
    out = tmp_path / "c.duckdb"
    done = CliRunner().invoke(main, ["campaign", str(out), "--report", str(page)])
    assert (done.exit_code, out.exists()) == (2, False)
    assert "no place for the scoreboard" in done.output
    nowhere = tmp_path / "nowhere" / "page.md"
    done = CliRunner().invoke(main, ["campaign", str(out), "--report", str(nowhere)])
    assert done.exit_code == 2
    assert f"no such folder: {nowhere.parent}" in done.stderr
    assert not nowhere.parent.exists()
    monkeypatch.setattr(publish, "find_spec", lambda name: None)
    done = CliRunner().invoke(
        main, ["campaign", str(out), "--report", str(tmp_path / "new.md"), "--json"]
    )
    assert (done.exit_code, out.exists()) == (2, False)
    error = json.loads(done.stdout)["error"]
    assert error["what"] == "a report needs scikit-learn and matplotlib"
    assert error["next"] == 'pip install "sdc-guard-torch[campaign]"'
