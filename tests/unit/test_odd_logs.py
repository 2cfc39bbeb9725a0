"""Logs that are almost what they should be: told in a line or a note, and never misread."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sdc_guard.cli import main
from sdc_guard.detect.series import judge
from sdc_guard.detect.series_log import Column, SeriesLog
from sdc_guard.errors import LogUnreadable
from sdc_guard.logs import json_rows
from sdc_guard.logs.columns import Asked
from sdc_guard.logs.reading import read_log
from sdc_guard.logs.table import LogTable


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["check-log", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def refused(*arguments: object) -> str:
    """The one line that says why."""
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def log_of(path: Path, text: str) -> SeriesLog:
    table = table_of(path, text)
    (rows,) = table.runs.values()
    return rows.log()


def table_of(path: Path, text: str) -> LogTable:
    path.write_text(text)
    (table,) = read_log(path, Asked())
    return table


def losses(log: SeriesLog) -> list[float]:
    assert log.loss is not None
    values: list[float] = log.loss.values[log.loss.given].tolist()
    return values


@pytest.mark.parametrize("steps", [("1.2k", "1.3k"), ("2024-01-01T00:00", "2024-01-02"), ("", "")])
def test_without_any_step_it_is_told_in_a_line(tmp_path: Path, steps: tuple[str, str]) -> None:
    path, good = tmp_path / "u.csv", tmp_path / "good.csv"
    path.write_text("step,loss\n" + "".join(f"{step},3\n" for step in steps))
    good.write_text("step,loss\n1,3\n")
    assert f"no row has a number as its step, but {steps[0]!r}" in refused(path)
    assert json.loads(call(path, "--json").stdout)["error"]["where"] == str(path)
    beside = call(path, good)
    assert beside.exit_code == 2
    assert "no incident" in beside.stdout


def test_a_run_without_any_step_does_not_hide_the_others(tmp_path: Path) -> None:
    table = table_of(tmp_path / "r.csv", "run,step,loss\na,x,1\nb,1,2\n")
    assert list(table.runs) == ["b"]
    assert "1 row without a step left out" in table.notes


def test_commas_between_fields_are_those_of_thousands_within_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = table_of(path, 'step,loss\n"999","1,200"\n"1,000",90\n"1,001","1,234,567.5"\n')
    log = table.runs[""].log()
    assert log.steps.tolist() == [999, 1000, 1001]
    assert losses(log) == [1200.0, 90.0, 1234567.5]
    assert "commas in loss are read as those between thousands, in 2 cells" in table.notes
    assert "commas in step are read as those between thousands, in 2 cells" in table.notes
    semicolons = table_of(path, "step;loss\n1;1,200\n2;0,5\n")
    assert losses(semicolons.runs[""].log()) == [1.2, 0.5]
    assert not semicolons.notes


def test_commas_that_may_mean_either_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('step,loss\n1,"2,315"\n2,"2,31"\n')
    assert "commas in loss are those of thousands or of fractions, as in '2,31'" in refused(path)
    path.write_text('step,loss\n1,2\n2,"2,31"\n')
    assert "loss is no number in 1 row" in call(path).stdout


@pytest.mark.parametrize("rest", ["", '300,2.5,"fine"\n301,2.5,ok\n'])
@pytest.mark.parametrize("opened", ['100,2.5,"started', '100,"2.5,ok'])
def test_a_quotation_that_is_not_closed_is_no_text(tmp_path: Path, opened: str, rest: str) -> None:
    path = tmp_path / "q.csv"
    rows = [f"{step},2.5,ok" for step in range(200)]
    rows[100] = opened
    rows[150] = "150,nan,ok"
    path.write_text("step,loss,note\n" + "\n".join(rows) + "\n" + rest)
    assert "a quotation mark that is not closed takes in rows, as '101,2.5,ok'" in refused(path)


def test_text_of_several_lines_is_no_row(tmp_path: Path) -> None:
    text = 'step,loss,note\n1,2.5,"so,\nit is,\n3,,\n"\n2,2.25,"1, 2\n3, 4"\n'
    assert losses(log_of(tmp_path / "q.csv", text)) == [2.5, 2.25]


def test_names_of_runs_move_no_cursor_and_need_no_encoding(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    runs = ["\ud800", "\x1b[2Jevil", "größe"]
    path.write_text("".join(json.dumps({"step": 1, "loss": 2, "run": run}) + "\n" for run in runs))
    told = call(path).stdout
    for name in ("run \\ud800:", "run \\x1b[2Jevil:", "run größe:"):
        assert name in told
    assert "\x1b" not in told + refused(path, "--run", "none")
    assert [log["run"] for log in json.loads(call(path, "--json").stdout)["logs"]] == runs
    path.write_text("step,\x1b[31mred\n1,2\n")
    assert "step, \\x1b[31mred" in refused(path)


@pytest.mark.parametrize(
    "begin", [b"step,loss\n1,2\n", b'{"step": 1, "loss": 2}\n{"step": ', b"loss"]
)
def test_a_line_without_end_is_not_held(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(begin)
        for _ in range(64):
            file.write(b"1" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(LogUnreadable, match=r"line \d is longer than 4,194,304 characters"):
            read_log(path, Asked())
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [True, False])
def test_a_document_is_measured_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(json_rows, "_LARGEST", 8 << 20)
    path = tmp_path / "state"
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        file.write(b'{"log_history": [')
        for _ in range(32):
            file.write(b" " * (1 << 20))
        file.write(b"]}")
    tracemalloc.start()
    try:
        with pytest.raises(LogUnreadable, match="too large a JSON document, of more than 8 MB"):
            read_log(path, Asked())
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_name_that_comes_twice_is_noted(tmp_path: Path) -> None:
    table = table_of(tmp_path / "d.csv", "step,loss,loss,x,x\n1,2,3,4,5\n")
    assert "2 columns have the name loss: the first is read" in table.notes
    assert not any("name x" in note for note in table.notes)


def test_steps_with_fractions_keep_their_order(tmp_path: Path) -> None:
    rows = "".join(f"{row / 10},{row}\n" for row in (0, 1, 2, 3, 2, 3, 4))
    table = table_of(tmp_path / "f.csv", "step,loss\n" + rows)
    assert table.runs[""].log().steps.tolist() == [0, 1, 2, 3, 2, 3, 4]
    assert "step has fractions: rows are numbered from 0 in its order" in table.notes
    assert log_of(tmp_path / "w.csv", "step,loss\n7.0,1\n1e1,2\n").steps.tolist() == [7, 10]


def test_the_same_step_in_every_row_says_no_order(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("step,loss\n" + "5,2.5\n" * 40 + "5,inf\n")
    told = call(path).stdout
    assert "the step is 5 in every row: rows are counted from 0" in told
    assert "INCIDENT step 40:" in told
    assert "sorted" not in told


@pytest.mark.parametrize(
    "options", [("--loss", "a", "--grad-norm", "a"), ("--loss", "step"), ("--step", "loss")]
)
def test_one_column_is_not_taken_for_two(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "c.csv"
    path.write_text("step,loss,a\n1,2,3\n")
    assert "would be both --" in refused(path, *options)


def test_what_is_no_file_is_called_what_it_is(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    assert "a pipe or a device, which is not read" in refused(pipe)
    assert "a link that leads nowhere" in refused(loop)
    assert "an empty name of a file" in refused("")
    for text in ("null", "3\n"):
        (tmp_path / "v.json").write_text(text)
        assert "one value and no log" in refused(tmp_path / "v.json")


def test_the_largest_numbers_raise_no_warning() -> None:
    huge = np.where(np.arange(400) % 2, 1e308, -1e308)
    columns: dict[str, Any] = {
        "loss": Column.of(huge),
        "grad_norm": Column.of(np.where(np.arange(400) % 7, 1e308, 5e-324)),
    }
    judge(SeriesLog(np.arange(400), **columns))  # warnings are errors here
