"""The user's command as a judge: what its exit code means, and what a crash means."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.checkpoint import Checkpoint
from forensics.oracles.command import CommandOracle
from sdc_guard.errors import CommandFailed, UsageError


def oracle(script: str, **options: bool) -> CommandOracle:
    return CommandOracle(["/bin/sh", "-c", script, "judge", "{ckpt}", "{step}"], **options)


def checkpoint(step: int = 7, *, readable: bool = True) -> Checkpoint:
    reasons = () if readable else ("truncated",)
    return Checkpoint(step, Path("a folder/x"), "torch", "untested", reasons, readable=readable)


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("exit 0", "clean"),
        ("exit 1", "corrupt"),
        ("exit 125", "untestable"),
        ('[ "$1" = "a folder/x" ] && [ "$2" = 7 ]', "clean"),
    ],
)
def test_exit_codes(script: str, verdict: str) -> None:
    assert oracle(script).judge(checkpoint()).verdict == verdict


def counted(folder: Path, script: str) -> str:
    """The script, which adds a line to a file per run."""
    return f"echo x >> '{folder}/runs'; {script}"


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text(encoding="utf-8").splitlines())


TRACEBACK = "echo 'Traceback (most recent call last)' >&2; echo 'OSError: gone' >&2; exit 1"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 9", "ended with 9 on step 7: no output"),
        (TRACEBACK, "crashed on step 7: OSError: gone"),
    ],
)
def test_a_second_crash_stops_the_search(tmp_path: Path, script: str, says: str) -> None:
    with pytest.raises(CommandFailed, match=rf"{says}.*it was run twice"):
        oracle(counted(tmp_path, script)).judge(checkpoint())
    assert runs(tmp_path) == 2
    judgement = oracle(counted(tmp_path, script), skip_crashes=True).judge(checkpoint())
    assert judgement.verdict == "untestable"
    assert "twice" in judgement.reason


def test_a_crash_that_passes_is_no_evidence(tmp_path: Path) -> None:
    once = f"[ -e '{tmp_path}/seen' ] && exit 1; touch '{tmp_path}/seen'; exit 9"
    assert oracle(once).judge(checkpoint()).verdict == "corrupt"


def test_what_cannot_be_read_is_not_shown_to_it(tmp_path: Path) -> None:
    judgement = oracle(counted(tmp_path, "exit 0")).judge(checkpoint(readable=False))
    assert (judgement.verdict, judgement.reason) == ("untestable", "truncated")
    assert not (tmp_path / "runs").exists()


def test_commands_that_cannot_be_right() -> None:
    with pytest.raises(UsageError, match="names neither"):
        CommandOracle(["true"])
    with pytest.raises(CommandFailed, match="cannot be started"):
        CommandOracle(["no-such-program", "{ckpt}"]).judge(checkpoint())


def test_it_can_be_sent_to_another_machine(tmp_path: Path) -> None:
    there = pickle.loads(pickle.dumps(oracle("exit 1")))
    seen = replace(checkpoint(), path=tmp_path)
    assert there.judge(seen).verdict == "corrupt"
    with pytest.raises(CommandFailed, match="does not see the checkpoint of step 7"):
        there.judge(checkpoint())


def test_stop_ends_what_runs(tmp_path: Path) -> None:
    import threading

    judge = oracle(f"echo $$ > '{tmp_path}/pid.new'; mv '{tmp_path}/pid.new' '{tmp_path}/pid'; "
                   "exec sleep 60")  # fmt: skip
    failed: list[BaseException] = []

    def run() -> None:
        try:
            judge.judge(checkpoint())
        except CommandFailed as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "pid").exists():
        thread.join(0.01)
    judge.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert "ended with -15" in str(failed[0])
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 0)


def test_it_does_not_wait_for_what_the_command_leaves_running(tmp_path: Path) -> None:
    """A child that holds stdout open; it ends by itself after ten seconds, and says so."""
    hold, ended = tmp_path / "hold", tmp_path / "ended"
    hold.touch()
    child = (
        f'i=0; while [ -e "{hold}" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done; '
        f'if [ -e "{hold}" ]; then touch "{ended}"; fi'
    )
    try:
        judged = oracle(f"echo told; ({child}) & exit 1").judge(checkpoint())
        assert judged.verdict == "corrupt"
        assert not ended.exists()
    finally:
        hold.unlink()


def test_the_end_of_what_it_prints_is_read(tmp_path: Path) -> None:
    noise = "head -c 3000000 /dev/zero | tr '\\0' x"
    with pytest.raises(CommandFailed, match="ended with 7 on step 7: the last word"):
        oracle(f"{noise}; echo; echo the last word; exit 7").judge(checkpoint())
