"""Pages while others hold the run's files: the training that writes it, or another DuckDB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hand_made import Trace, corrupt_run, make_run
from streamlit.testing.v1 import AppTest

from sdc_guard.store.sealing import seal_run

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"
_HOLDS = """
import duckdb, sys
held = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_two_pages_while_the_writer_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    with Trace(run) as earlier:
        earlier.steps(1, 10)
    monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
    with Trace(run) as writer:
        writer.steps(11, 12)
        for _ in range(2):
            app = AppTest.from_file(str(MAIN), default_timeout=60).run()
            assert not app.exception, app.exception
            assert "Clean so far" in app.success[0].value
        seal_run(run, at_least=1)
        app.run()
        assert not app.exception, app.exception
    app.run()
    assert "12 steps recorded" in app.success[0].value


def test_a_file_that_another_process_holds_costs_itself_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = corrupt_run(tmp_path / "run")
    seal_run(run, at_least=1)
    for segment in (run / "trace").glob("*/*/seg-*"):
        segment.unlink()
    (seal,) = (run / "trace" / "alerts").glob("*/seal-*.duckdb")
    command = [sys.executable, "-c", _HOLDS, str(seal)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
        app = AppTest.from_file(str(MAIN), default_timeout=60).run()
        holder.communicate("")
    assert not app.exception, app.exception
    assert "1 checkpoint held back as suspect" in app.error[0].value  # by what can be read
    told = app.table[-1].value.to_string(max_colwidth=None).replace("\\", "")
    assert f"alerts/rank=00000/{seal.name}" in told
    assert f"(PID {holder.pid})" in told
