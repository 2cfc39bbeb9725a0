"""The ledger's file: appended by many, read by people, damaged by crashes."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from sdc_guard import Guard, SdcGuardError, TrainingHalted
from sdc_guard.checks.audit.subject import device_serial
from sdc_guard.cli import main
from sdc_guard.detect.strikes import standings
from sdc_guard.ledger import Ledger, read_ledger

CPU = device_serial(torch.device("cpu"))


def _append(path: Path, device: str, count: int) -> None:
    for step in range(count):
        Ledger(path).strike(device, "runs/a", step, "intermittent")


def test_several_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "strikes" / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(path, f"GPU-{i}", 50)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries, damaged = read_ledger(path)
    assert damaged == 0
    assert len(entries) == 200
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines if line["device"] == "GPU-2"] == list(range(50))


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    _append(path, "GPU-1", 3)
    content = path.read_bytes()
    path.write_bytes(content[:-20])  # killed while it wrote the third
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe nonsense\n[1]\n{}\n" + b'{"kind": "strike"')
    _append(path, "GPU-1", 1)
    entries, damaged = read_ledger(path)
    assert len(entries) == 3
    assert damaged == 5


STRIKE = {"version": 1, "kind": "strike", "time": 1.0, "device": "GPU-1", "host": "n1"}


def _line(**changed: object) -> bytes:
    return json.dumps({**STRIKE, **changed}).encode()


@pytest.mark.parametrize(
    "line",
    [
        _line(kind="audits", count=float("inf")),
        _line(kind="audits", count=float("nan")),
        _line(kind="audits", count=1e300),
        _line(kind="audits", count=10**30),
        _line(kind="audits", count=-1),
        _line(kind="audits", count="7"),
        _line(count=True),
        _line(time=float("nan")),
        _line(time=float("-inf")),
        _line(time=10**400),
        _line(time=-1.0),
        _line(time=1e12),
        _line(time=True),
        _line(time="1.0"),
        _line(time=None),
        _line().replace(b"1.0", b"9" * 5000),
        _line().replace(b"1.0", b"1e999"),
        _line(kind=["strike"]),
        _line(kind="praise"),
        _line(device=""),
        _line(device="x" * 100_000),
        _line(device=7),
        _line(host=None),
        _line(verdict={}),
        _line(run=1),
        _line().replace(b"GPU-1", b"GPU-\xff"),
        _line().replace(b"}", b', "more": "' + b"x" * (2 << 20) + b'"}'),
        _line() + b" " * (2 << 20),
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 100_000,
        b"\0" * 4096,
        b"null",
    ],
    ids=lambda line: repr(line if len(line) < 120 else line[:90]),
)
def test_a_damaged_line_is_passed_over_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"\n".join((_line(), line, _line(), b"")))
    entries, damaged = read_ledger(path)
    assert ([entry.device for entry in entries], damaged) == (["GPU-1", "GPU-1"], 1)
    done = CliRunner().invoke(main, ["strikes", str(path)])
    assert (done.exit_code, len(done.output.splitlines())) == (0, 3)
    assert "1 damaged lines" in done.output
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING):
        Guard(model, optimizer, run=tmp_path / "run", ledger=path).close()
    assert "1 damaged lines" in caplog.text


def test_a_line_of_an_editor_on_windows_counts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + _line() + b"\r\n\r\n" + _line())
    assert (len(read_ledger(path)[0]), read_ledger(path)[1]) == (2, 0)


def test_a_line_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(_line() + b"\n" + _line()[:30])

    def write_the_rest() -> None:
        time.sleep(0.01)
        with path.open("ab") as file:
            file.write(_line()[30:] + b"\n")

    writer = threading.Thread(target=write_the_rest)
    writer.start()
    found = read_ledger(path)
    writer.join()
    assert (len(found[0]), found[1]) == (2, 0)


def test_a_name_cannot_fake_a_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    name = "\x1b[2J\r\nOUT  GPU-2\u2028\u202e\x85\ud800"
    path.write_bytes(_line(device=name, host=name) + b"\n")
    done = CliRunner().invoke(main, ["strikes", str(path)])
    _, line = done.output.splitlines()
    assert line.isprintable()
    shown = r"\x1b[2J\r\nOUT  GPU-2\u2028\u202e\x85\ud800"
    assert line.startswith(f"in   {shown} ({shown}): 1 strike in 1 audit,")
    done = CliRunner().invoke(main, ["strikes", str(path), "--json"])
    assert json.loads(done.output)["devices"][0]["device"] == name


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "too large"])
def test_only_a_file_is_read_and_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger.jsonl"
    if kind == "pipe":
        os.mkfifo(path)  # nobody at its other end: opened plainly, it waits for ever
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SdcGuardError, match="too many" if kind == "too large" else "no regular"):
        Guard(model, optimizer, run=tmp_path / "run", ledger=path)
    done = CliRunner().invoke(main, ["strikes", str(path)])
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    if kind != "too large":
        with pytest.raises(OSError, match=r"regular|directory"):
            Ledger(path).strike("GPU-1", "runs/a", 1, "intermittent")


def test_a_line_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, clock=lambda: 1_700_000_000.0)
    ledger.strike("GPU-1", "runs/a", 7, "intermittent", rank=3)
    ledger.audits("GPU-1", "runs/a", 100)
    ledger.note_memory_errors("GPU-1", "runs/a", {"corrected": 12})
    ledger.clear("GPU-1", "board replaced")
    kinds = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in kinds] == ["strike", "audits", "note", "cleared"]
    assert kinds[0]["when"] == "2023-11-14T22:13:20Z"
    assert kinds[0]["rank"] == 3
    assert standings(read_ledger(path)[0])[0].strikes == 0


def bad_cpu(path: Path) -> None:
    for device in (CPU, *(f"GPU-{i}" for i in range(7))):
        Ledger(path).audits(device, "runs/a", 1000)
    _append(path, CPU, 6)


def test_the_command_lists_and_clears(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    bad_cpu(path)
    done = CliRunner().invoke(main, ["strikes", str(path)])
    assert done.exit_code == 1
    heading, first, *others = done.output.splitlines()
    assert heading.startswith("OUT: exclude this device; in: ")
    assert all(line.startswith("in   GPU-") for line in others)
    assert first.startswith("OUT")
    assert CPU in first
    assert "6 strikes in 1000 audits" in first
    done = CliRunner().invoke(main, ["strikes", str(path), "--json"])
    content = json.loads(done.output)
    assert content["schema"] == {"name": "sdc-guard.strikes", "version": 1}
    assert content["devices"][0]["out"]
    assert content["damaged_lines"] == 0
    done = CliRunner().invoke(main, ["strikes", str(path), "--clear", CPU, "--because", "new"])
    assert done.exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["no.jsonl"],
        ["ledger.jsonl", "--clear", "GPU-9"],
        ["ledger.jsonl", "--because", "new"],
        ["ledger.jsonl", "--because", ""],
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    bad_cpu(tmp_path / "ledger.jsonl")
    arguments[0] = str(tmp_path / arguments[0])
    done = CliRunner().invoke(main, ["strikes", *arguments])
    assert done.exit_code == 2
    assert done.exception is not None
    assert len(done.output.strip().splitlines()) == 1
    assert "Traceback" not in done.output


def test_a_device_that_is_out_is_told_of_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.jsonl"
    bad_cpu(path)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING):
        Guard(model, optimizer, run=tmp_path / "run", ledger=path).close()
    (line,) = [r.getMessage() for r in caplog.records if "exclude this device" in r.getMessage()]
    assert CPU in line
    with pytest.raises(TrainingHalted, match="exclude this device"):
        Guard(model, optimizer, run=tmp_path / "halted", ledger=path, policy="halt")
    assert not (tmp_path / "halted").exists()


def test_a_ledger_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SdcGuardError):
        Guard(model, optimizer, run=tmp_path / "run", ledger=tmp_path)


def _guard_lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if word in r.getMessage()]


def test_a_ledger_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" / "ledger.jsonl"
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING):
        Guard(model, optimizer, run=tmp_path / "run", ledger=path).close()
    (line,) = _guard_lines(caplog, str(path))
    assert "cannot be written" in line
    assert "strikes are not kept" in line
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Guard(model, optimizer, run=tmp_path / "other", ledger=tmp_path / "new" / "one").close()
    assert _guard_lines(caplog, "ledger") == []
    assert read_ledger(tmp_path / "new" / "one") == ([], 0)


def test_a_pipe_is_no_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SdcGuardError, match="no regular file"):
        read_ledger(tmp_path / "pipe")


def test_the_beginning_of_a_serial_clears_where_it_is_only_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for device in ("GPU-6f2c-1", "GPU-6f3d-1", "GPU-6f3d-12"):
        _append(path, device, 1)
    for given, cleared in {"GPU-6f2": "GPU-6f2c-1", "GPU-6f3d-1": "GPU-6f3d-1"}.items():
        done = CliRunner().invoke(main, ["strikes", str(path), "--clear", given])
        assert done.exit_code == 0
        assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["device"] == cleared
    assert f"in   GPU-6f3d-12 ({socket.gethostname()}): 1 strike in 1 audit, " in done.output
    for given, said in {"GPU-6f": "3 devices begin with GPU-6f", "": "no device"}.items():
        done = CliRunner().invoke(main, ["strikes", str(path), "--clear", given])
        assert done.exit_code == 2
        assert said in done.output
    assert len(read_ledger(path)[0]) == 5
