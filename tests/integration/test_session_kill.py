"""kill -9 and Ctrl-C of a search, as a process of its own: what was judged is not judged again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import preloaded
import torch

STEPS = range(100, 6500, 100)  # 64: at most 8 judgings
BAD = 3700
# slow enough to be killed while it judges; it ends with the search, not after it
CHECK = """
import sys, time
with open(sys.argv[1], "a") as file:
    file.write(sys.argv[2] + "\\n")
time.sleep(float(sys.argv[3]))
sys.exit(int(sys.argv[2]) >= int(sys.argv[4]))
"""


def search(archive: Path, notes: Path, seconds: float) -> list[str]:
    check = [sys.executable, "-S", "-c", CHECK, notes, "{step}", seconds, BAD, "{ckpt}"]
    command = [sys.executable, "-m", "forensics.cli", "run", archive, "--json", "--", *check]
    return [str(part) for part in command]


def judged(notes: Path) -> list[int]:
    """The steps whose judging has begun."""
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not come so far in time"
        time.sleep(0.01)


def started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_killed_stopped_and_run_again(tmp_path: Path) -> None:
    archive, notes = tmp_path / "archive", tmp_path / "judged"
    archive.mkdir()
    for step in STEPS:
        torch.save({"step": step}, archive / f"checkpoint-{step}.pt")
    journal = archive / ".sdc-bisect" / "0001" / "journal.jsonl"

    def kept() -> list[int]:
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [event["step"] for event in map(json.loads, lines) if event["event"] == "probe"]

    command = search(archive, notes, 0.3)
    killed = started(command)
    wait_for(lambda: len(judged(notes)) == 3, killed)  # two are kept, the third is being judged
    killed.send_signal(signal.SIGKILL)
    out, _ = killed.communicate()
    assert (killed.returncode, out) == (-signal.SIGKILL, "")
    known = kept()
    assert known == judged(notes)[:2]
    assert (archive / ".sdc-bisect" / "lock").exists()  # nobody was there to remove it

    stopped = started(command)
    wait_for(lambda: len(judged(notes)) == 5, stopped)  # the next but one of this search
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate()
    assert stopped.returncode == 130
    assert f"process {killed.pid} ended without a word" in err
    assert "2 judged by command" in err
    error = json.loads(out)["error"]
    assert "stopped after 3 judgings" in error["what"]
    assert "Traceback" not in err
    assert judged(notes)[3] == judged(notes)[2]  # the one that was lost in the middle, again

    command[0] = preloaded.python()
    last = subprocess.run(command, capture_output=True, text=True, check=False)
    assert last.returncode == 1, last.stderr
    assert "3 judged by command" in last.stderr
    result = json.loads(last.stdout)
    assert (result["last_clean"], result["first_corrupt"]) == (BAD - 100, BAD)
    assert [probe["step"] for probe in result["probes"]] == kept()
    assert len(kept()) == len(set(kept())) == 8
    assert not (archive / ".sdc-bisect" / "open").exists()
