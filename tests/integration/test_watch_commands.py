"""`sdc-guard watch | export | sql | metrics` as a user calls them."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import Answer

from sdc_guard.cli import main
from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.writer import Health, Writer

PATIENCE = 60.0
COMMAND = [sys.executable, "-m", "sdc_guard.cli"]


def guard_command(*arguments: object) -> Answer:
    """sdc-guard in this process, which has imported what takes a second to import."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Answer(result.exit_code, result.stdout, result.stderr)


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    layers = (Layer(0, "w", (), (1,), "float32", 1),)
    RunFile(folder.name, 1, layers, (Attempt(1, 0, 0.0),)).write(folder)
    return folder


def write(run: Path, *rows: tuple[str, dict[str, Any]]) -> None:
    writer = Writer(run, 0, Health())
    for table, columns in rows:
        writer.append(table, attempt=1, **columns)
    writer.close()


def steps(first: int, end: int) -> tuple[str, dict[str, Any]]:
    """Steps of half a second, the last of them just now."""
    numbers = np.arange(first, end)
    now = {"time": time.time(), "step_seconds": 0.5}
    return "steps", {"step": numbers, "loss": numbers / 3, **now}


def incident(at: int) -> tuple[str, dict[str, Any]]:
    return "incidents", {"step": at, "incident": 1, "opened": at, "evidence": "{}"}


def alert(at: int) -> tuple[str, dict[str, Any]]:
    return "alerts", {
        "step": at, "layer": 0, "detector": "norm", "severity": "suspect",
        "detail": json.dumps({"text": "far too large"}),
    }  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = make_run(tmp_path / "runs" / "one")
    write(made, steps(0, 10))
    return made


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "xterm", "COLUMNS": "160"}
        command = [*COMMAND, *map(str, arguments)]
        made.append(subprocess.Popen(command, text=True, env=environment, **options))
        return made[-1]

    yield start
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_watch_once_and_its_exit_codes(run: Path, tmp_path: Path) -> None:
    calm = guard_command("watch", "--once", run.parent)
    assert calm.code == 0
    header, row = calm.out.splitlines()
    assert header.split()[:3] == ["run", "state", "step"]
    assert row.split()[:5] == ["one", "recording", "9", "2", "3"]
    absent = guard_command("watch", "--once", run, tmp_path / "later")
    assert absent.code == 2
    assert "no run folder there" in absent.out
    write(run, alert(4), incident(4))
    loud = guard_command("watch", "--once", run.parent, tmp_path / "later")
    assert loud.code == 1
    assert "step 4: norm in w (suspect): far too large" in loud.out
    content = guard_command("watch", "--json", run)
    assert content.code == 1
    assert content.json["schema"] == {"name": "sdc-guard.watch", "version": 1}
    (one,) = content.json["runs"]
    assert (one["run"], one["last_step"], one["open_incidents"]) == (str(run), 9, 1)
    assert one["alerts"] == [{"detector": "norm", "severity": "suspect", "count": 1}]
    wrong = guard_command("watch", "--once")
    assert wrong.code == 2
    assert "Traceback" not in wrong.err


def test_watch_tells_news_in_a_pipe_until_ctrl_c(
    run: Path, tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    later = tmp_path / "later"
    process = started("watch", "--interval", "0.1", run, later)
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    assert f"{run}: recording, step 9, 0 alerts" in first
    assert f"{later}: waiting: no run folder there" in second
    write(run, alert(4), incident(4))
    line = process.stdout.readline()
    while "1 open incidents" not in line:  # the alert may have been published first
        line = process.stdout.readline()
    assert "1 alerts" in line
    (run / "run.json").rename(run / "away")
    assert ": waiting: no guard recorded here" in process.stdout.readline()
    make_run(later)
    assert f"{later}: silent" in process.stdout.readline()  # it began in 1970
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


def test_watch_redraws_a_table_in_a_terminal(
    run: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    ours, theirs = pty.openpty()
    process = started("watch", "--interval", "0.1", run, stdout=theirs)
    os.close(theirs)
    seen = ""

    def until(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + PATIENCE
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536).decode(errors="replace")

    until("recording")
    write(run, steps(10, 4321))
    until("4,320")
    process.send_signal(signal.SIGINT)
    until("\x1b[?25h")  # the cursor is back
    assert process.wait(PATIENCE) == 0
    os.close(ours)


def test_head_ends_a_command_without_a_word(run: Path) -> None:
    write(run, steps(10, 30_000))
    for arguments in (
        ["sql", str(run), "SELECT * FROM steps"],
        ["sql", "--json", str(run), "SELECT * FROM steps"],
        ["watch", "--interval", "0.1", str(run), *map(str, range(1000))],  # 100 kB
    ):
        command = f"set -o pipefail; {shlex.join([*COMMAND, *arguments])} | head -1"
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=run.parent,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments[0]
        assert len(done.stdout.splitlines()) == 1


def test_sql_values_in_csv_and_json(run: Path) -> None:
    query = (
        "SELECT 9223372036854775807 AS n, 'nan'::DOUBLE AS x, '-inf'::FLOAT AS y, NULL AS z,"
        " 'a,\"b' AS s, '\\x01'::BLOB AS b, [1, NULL] AS l, DATE '2026-01-02' AS n"
    )
    csv = guard_command("sql", run, query)
    assert csv.out.splitlines()[0] == "n,x,y,z,s,b,l,n"
    assert csv.out.splitlines()[1].startswith('9223372036854775807,nan,-inf,,"a,""b",')
    found = guard_command("sql", "--json", run, query)
    assert found.code == 0
    assert found.json["schema"] == {"name": "sdc-guard.sql", "version": 1}
    assert found.json["columns"] == ["n", "x", "y", "z", "s", "b", "l", "n"]
    assert found.json["types"][:3] == ["int64", "double", "float"]
    assert found.json["rows"] == [
        [9223372036854775807, "NaN", "-Infinity", None, 'a,"b', "01", [1, None], "2026-01-02"]
    ]
    assert found.json["missing"] == []


def test_sql_that_is_wrong_or_has_nothing_to_read(run: Path, tmp_path: Path) -> None:
    wrong = guard_command("sql", run, "SELEC 1")
    assert (wrong.code, wrong.out) == (2, "")
    assert len(wrong.err.splitlines()) == 1
    told = guard_command("sql", "--json", run, "SELECT * FROM nowhere")
    assert told.code == 2
    assert told.json["schema"]["name"] == "sdc-guard.sql"
    assert "nowhere" in told.json["error"]["what"]
    empty = make_run(tmp_path / "empty")
    none = guard_command("sql", "--json", empty, "SELECT step FROM steps")
    assert (none.json["columns"], none.json["rows"]) == (["step"], [])
    (run / "trace/steps/rank=00000/seg-00000000.parquet").write_bytes(b"PAR1")
    damaged = guard_command("sql", "--json", run, "SELECT count(*) FROM steps")
    assert (damaged.code, damaged.json["rows"]) == (0, [[0]])
    assert "no whole segment (4 bytes)" in damaged.json["missing"][0]
    assert "missing of steps" in damaged.err


def test_sql_and_export_of_a_run_that_writes(run: Path, tmp_path: Path) -> None:
    writer = Writer(run, 0, Health())
    try:
        for number in range(10, 40):
            writer.append("steps", attempt=1, step=number, loss=number / 3)
            if number % 10 == 9:
                assert writer.flush()
                counted = guard_command("sql", run, "SELECT count(*) AS n, max(step) FROM steps")
                assert counted.out.splitlines()[1] == f"{number + 1},{number}"
                target = tmp_path / f"{number}.duckdb"
                assert guard_command("export", run, target).code == 0
                with duckdb.connect(str(target), read_only=True) as plain:
                    assert plain.execute("SELECT max(step) FROM steps").fetchall() == [(number,)]
    finally:
        writer.close()


def test_export_by_its_command(run: Path, tmp_path: Path) -> None:
    target, folder = tmp_path / "x.duckdb", tmp_path / "x"
    first = guard_command("export", run, target, "--parquet", folder)
    assert (first.code, first.out) == (0, f"{target} written\n{folder} written\n")
    again = guard_command("export", run, target)
    assert again.code == 2
    assert again.err == f"sdc-guard: there already: {target} (--force replaces it)\n"
    assert guard_command("export", run, target, "--force").code == 0
    nothing = guard_command("export", run)
    assert nothing.code == 2
    assert "give a FILE.duckdb" in nothing.err
    absent = guard_command("export", tmp_path / "nowhere", target, "--force")
    assert absent.code == 2
    assert "no run folder there" in absent.err


def test_metrics_of_runs_until_ctrl_c(
    run: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started("metrics", run.parent, "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().split()[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=PATIENCE) as answer:
        assert f'sdc_guard_step{{run="{run}"}} 9.0' in answer.read().decode()
    taken = guard_command("metrics", run, "--port", address.split(":")[2].split("/")[0])
    assert taken.code == 2
    assert taken.err.startswith("sdc-guard: Address already in use: 127.0.0.1 port ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("module", ["watch.command", "delivery.run_metrics", "store.export"])
def test_these_commands_do_not_import_torch(module: str) -> None:
    code = f"import sdc_guard.{module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
