"""kill -9 in the middle of a replay, and verify once more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import preloaded
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bisect_campaign as campaign
from bisect_training import EVERY, STEPS, Plan, train

from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.interrupted import begin, finish, left_of
from forensics.replay import ResumeCommand
from forensics.unfinished import session_for
from sdc_guard import RunReader
from sdc_guard.signals.capture import VARIABLE

SCRIPT = Path(campaign.__file__).with_name("bisect_training.py")
ROOT = Path(__file__).resolve().parents[2]


def verify_command(run: Path, pause: float) -> list[str]:
    resume = [preloaded.python(), SCRIPT, "{run}", "--resume", "{ckpt}", "--until", "{step}"]
    verify = [sys.executable, "-m", "forensics.cli", "verify", run, "--from", EVERY, "--json"]
    return [str(part) for part in [*verify, "--", *resume, "--pause", pause]]


def test_it_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, Plan())
    command = verify_command(run, 0.15)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)  # fmt: skip
    replayed = run / "bisect" / "0001" / "replay-1"
    own = replayed / "archive" / "step=000012" / "manifest.json"
    deadline = time.monotonic() + 300  # a loaded machine is no failure
    while not own.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()

    command[0] = preloaded.python()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "going on with session 0001" in done.stderr
    assert json.loads(done.stdout)["last_clean"] == STEPS
    assert [path.name for path in sorted((run / "bisect").iterdir())] == ["0001"]
    with RunReader(replayed) as reader:
        attempts = [(one.attempt, one.first_step) for one in reader.run_file.attempts]
        steps = [row[0] for row in reader.rows("SELECT step FROM steps ORDER BY step")]
    assert attempts[0] == (1, EVERY + 1)
    assert attempts[1:] == [(2, attempts[1][1])]
    assert attempts[1][1] in (13, 19)  # after a checkpoint that the replay itself had written
    assert steps == list(range(EVERY + 1, STEPS + 1))


@pytest.fixture
def start(tmp_path: Path) -> Checkpoint:
    run = tmp_path / "run"
    train(run, Plan(), until=12)
    return index(run)[0]


def test_what_can_be_used_again(start: Checkpoint, tmp_path: Path) -> None:
    target, inputs = tmp_path / "replay", {"command": ["x"]}
    train(target, Plan(), until=20, resume=start.path)
    assert left_of(target, inputs, start, STEPS, None).resume is None  # whose is it?
    begin(target, inputs)
    left = left_of(target, inputs, start, STEPS, None)
    assert left.resume is not None
    assert (left.whole, left.resume.name) == (False, "step=000018")
    assert left_of(target, {"command": ["y"]}, start, STEPS, None).resume is None
    before = campaign_capture(14)
    left = left_of(target, inputs, start, STEPS, before)  # what is to be kept comes after it
    assert left.resume is not None
    assert left.resume.name == "step=000012"
    finish(target, inputs)
    assert left_of(target, inputs, start, STEPS, None).whole
    (target / "replay.json").write_text("{")
    assert left_of(target, inputs, start, STEPS, None).resume is None


def campaign_capture(step: int):  # type: ignore[no-untyped-def] # because it is only passed on
    from sdc_guard.signals.capture import CaptureRequest

    return CaptureRequest(step, "before", (("param", 0),))


def test_a_finished_replay_is_used_again_unless_its_inputs_changed(
    start: Checkpoint, tmp_path: Path
) -> None:
    script = tmp_path / "count.py"
    script.write_text("import sys; open(sys.argv[2] + '/times', 'a').write('x')")
    command = ResumeCommand((sys.executable, str(script), "{ckpt}", "{run}"))
    target = tmp_path / "replay"
    for _ in range(2):
        command.replay(start, 12, target)
    assert (target / "times").read_text() == "x"
    script.write_text(script.read_text() + "  # changed")
    command.replay(start, 12, target)
    assert (target / "times").read_text() == "x"  # anew, in an empty folder
    command.replay(replace(start, step=4), 12, target)
    assert json.loads((target / "replay.json").read_text())["ended"]


def test_another_step_script_or_checkpoint_written_again_is_replayed_anew(
    start: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of a replay around this one is not for this one to keep."""
    times, script = tmp_path / "times", tmp_path / "count.py"
    told = f"os.environ.get({VARIABLE!r}, '-')"
    script.write_text(f"import os; open({str(times)!r}, 'a').write({told})")
    command = ResumeCommand((sys.executable, str(script), "{ckpt}"))
    monkeypatch.setenv(VARIABLE, campaign_capture(14).to_variable())
    target = tmp_path / "replay"
    for _ in range(2):
        command.replay(start, 12, target)
    assert times.read_text() == "-"
    file = min(path for path in start.path.rglob("*") if path.is_file())
    os.utime(file, ns=(0, file.stat().st_mtime_ns - 1_000_000_000))  # of the same size
    command.replay(start, 12, target)
    assert times.read_text() == "--"
    command.replay(replace(start, step=4), 12, target)
    assert times.read_text() == "---"
    script.write_text(script.read_text() + "  # changed")
    command.replay(replace(start, step=4), 12, target)
    assert times.read_text() == "----"


def test_a_session_is_gone_on_with_only_for_the_same_inputs(tmp_path: Path) -> None:
    said: list[str] = []
    with session_for(tmp_path, {"a": 1}, said.append) as session:
        first = session.folder
    with session_for(tmp_path, {"a": 2}, said.append) as session:
        assert session.folder != first
    assert said == []
    with session_for(tmp_path, {"a": 1}, said.append) as session:
        assert session.folder == first
        session.finish({"schema": {"name": "sdc-bisect.verify"}})
    assert said == ["going on with session 0001, which was interrupted"]
    with session_for(tmp_path, {"a": 1}, said.append) as session:  # that one has its result
        assert session.folder.name == "0003"
    with session_for(tmp_path, {"a": 1}, said.append, fresh=True) as session:
        assert session.folder.name == "0004"
