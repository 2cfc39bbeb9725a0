"""Searches that the page starts: real commands, followed, answered, stopped, none left over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import preloaded
import pytest
from small_training import Fault, train
from streamlit.testing.v1 import AppTest

from app.searching.launch import Launcher, Started, may_stop
from forensics.journal import Session
from forensics.sessions.lock import Owner
from forensics.sessions.process import Worker, worker_of
from sdc_guard.errors import UsageError
from sdc_guard.store.run_file import RunFile

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds, on a loaded machine
FIRST = 10  # the first corrupt checkpoint: a bit flips before step 8, and every fifth is saved
# a judge that takes its time, and notes that it was asked
SLOW = """
import sys, time
open(sys.argv[1], "a").write(sys.argv[2] + "\\n")
time.sleep(float(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty steps, checkpoints at 5, 10, 15 and 20, and a flipped bit."""
    folder = train(tmp_path_factory.mktemp("started") / "run", 20, Fault("param", 8, "2.weight"))
    resume = f"{sys.executable} -c pass {{ckpt}}"  # it resumes nothing: a replay has no record
    replace(RunFile.read(folder), resume=resume).write(folder)
    return folder


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    for started in made._newest.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.owner.pid, signal.SIGKILL)
        started.process.wait(PATIENCE)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come so far in time"
        time.sleep(0.02)


def started_ones(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """What pages start from now on."""
    found, start = list[Started](), Launcher.start

    def noting(launcher: Launcher, run: Path, arguments: Sequence[str]) -> Started:
        found.append(start(launcher, run, arguments))
        return found[-1]

    monkeypatch.setattr(Launcher, "start", noting)
    return found


def sessions(run: Path) -> list[Session]:
    return Session.all(run)


def group_of(started: Started) -> list[str]:
    """Processes of its group that have not been waited for, zombies among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == started.owner.pid:
                found.append(f"{stat.parent.name} {fields[0]}")
    return found


def slow(notes: Path, seconds: float) -> list[str]:
    return ["--", sys.executable, "-S", "-c", SLOW, str(notes), "{step}", str(seconds), "{ckpt}"]


def opened(run: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    app.switch_page("views/bisect.py")
    return app.run()


def text_of(app: AppTest) -> str:
    assert not app.exception, app.exception
    blocks = (*app.markdown, *app.error, *app.info, *app.warning, *app.caption)
    return "\n".join(str(block.value) for block in blocks).replace("\\", "")


def press(app: AppTest, about: str) -> AppTest:
    """Press the button that starts what is described so."""
    texts = [block.value for block in app.markdown]
    place = [text.startswith(about) for text in texts if text.startswith(STARTS)].index(True)
    return [one for one in app.button if one.label == "Start"][place].click().run()


def can_start(app: AppTest) -> bool:
    return "Start" in [one.label for one in app.button]


STARTS = ("Compares checkpoints", "Runs the command", "Runs the training again")


def test_started_followed_and_answered_on_the_page(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    app, other = opened(run, monkeypatch), opened(run, monkeypatch)
    started = started_ones(monkeypatch)
    press(app, "Compares checkpoints")
    assert "▶" in text_of(app)
    other.run()
    assert "▶" in text_of(other)  # two viewers see the same
    assert not can_start(other)
    # a page is asked again when there is something new: to draw it takes longer than the search
    wait_for(lambda: started[-1].code is not None)
    for page in (app, other):
        wait_for(lambda page=page: can_start(page.run()))  # type: ignore[misc]
    for page in (app, other):
        assert f"Checkpoint {FIRST} is the first corrupt one: bracket (5, {FIRST}]" in text_of(page)
        assert page.get("graphviz_chart")
    (session,) = sessions(run)
    result = session.result()
    assert result is not None
    assert (result["last_clean"], result["first_corrupt"]) == (5, FIRST)
    assert not (session.folder / "process.json").exists()
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    written = {path for path, when in after.items() if before.get(path) != when}
    assert all(path.parent == session.folder for path in written), written
    assert sorted(path.name for path in written) == ["journal.jsonl", "result.json"]

    # a replay that no guard records is no answer, and its reason is told
    press(app, "Runs the training again")
    wait_for(lambda: len(started) == 2 and started[-1].code is not None)
    wait_for(lambda: can_start(app.run()))
    assert "stopped: the resume command ran, but no guard recorded it" in text_of(app)
    assert "ended without an answer" in text_of(app)


def test_stopped_as_by_ctrl_c_and_gone_on_with(
    run: Path, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDC_GUARD_TOKEN", "of nobody else's business")
    notes = tmp_path / "judged"
    known = len(sessions(run))
    started = launcher.start(run, ("run", str(run), *slow(notes, 60.0)))
    wait_for(lambda: notes.exists() and len(notes.read_text().split()) == 1)
    session = sessions(run)[-1]
    assert len(sessions(run)) == known + 1
    worker = worker_of(session.folder)
    assert worker is not None
    assert worker.owner.pid == started.owner.pid
    assert (worker.by, worker.leads, may_stop(worker)) == ("dashboard", True, True)
    environment = Path(f"/proc/{started.owner.pid}/environ").read_bytes()
    assert b"SDC_GUARD_TOKEN" not in environment
    with pytest.raises(UsageError, match="searched already"):
        launcher.start(run, ("run", str(run)))
    with pytest.raises(UsageError, match="searched already"):  # another server of the same run
        Launcher().start(run, ("run", str(run)))
    # another server can stop it, too, by its process file
    Launcher().stop(run, worker)
    wait_for(lambda: started.code is not None)
    assert started.code == 130
    assert "stopped after 0 judgings" in started.said()
    wait_for(lambda: not group_of(started))
    assert worker_of(session.folder) is None
    events = [json.loads(line) for line in session.journal.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "stopped"]
    assert session.result() is None

    # the same search goes on in the same session, and beyond the end of the server that started
    # it, which as one in a shell's background ignores SIGINT
    code = (
        "import os, signal; from pathlib import Path; from app.searching.launch import Launcher\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"started = Launcher().start(Path({str(run)!r}), {started.arguments!r})\n"
        "print(started.owner.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [preloaded.python(), "-c", code], stdout=subprocess.PIPE, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM
    wait_for(lambda: len(notes.read_text().split()) == 2)
    assert len(sessions(run)) == known + 1
    worker = worker_of(session.folder)
    assert worker is not None
    assert worker.owner.pid == int(done.stdout)
    launcher.stop(run, worker)
    wait_for(lambda: worker.owner.gone)
    lines = session.journal.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "stopped", "stopped"]


DEAF = "import signal, time; signal.signal(2, signal.SIG_IGN); print(flush=True); time.sleep(600)"


@contextlib.contextmanager
def deaf() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own that ignores SIGINT."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_asked_twice_to_stop_it_has_to_end(run: Path, launcher: Launcher) -> None:
    with deaf() as process:
        started = Started((), Owner.of(process.pid), process, os.open(os.devnull, os.O_RDONLY))
        launcher._newest[run] = started
        launcher.stop(run, None)
        assert started.stopping is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        launcher.stop(run, None)
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_only_what_a_page_started_here_is_stopped(run: Path) -> None:
    def stop(worker: Worker) -> None:
        launcher = Launcher()
        launcher.stop(run, worker)
        launcher.stop(run, worker)

    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        owner = Owner.of(process.pid)
        stop(Worker(owner, "", True))  # typed by a user
        stop(Worker(owner, "dashboard", False))  # in a group with others
        stop(Worker(replace(owner, host="elsewhere"), "dashboard", True))
        stop(Worker(replace(owner, started="1"), "dashboard", True))  # the number is another's now
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
    finally:
        process.kill()
        process.communicate()
