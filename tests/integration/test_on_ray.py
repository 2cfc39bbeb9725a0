"""Judging on a Ray cluster that is started for it, on this machine: started once for all tests."""

from __future__ import annotations

import json
import operator
import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from forensics.bracket import find_bracket
from forensics.checkpoint import Checkpoint
from forensics.cli import main
from forensics.executors.executor import Executor
from forensics.executors.local import Local
from forensics.executors.on_ray import OnRay
from forensics.index import index
from forensics.oracles.command import CommandOracle
from forensics.result import Result
from sdc_guard.errors import CommandFailed, UsageError

FROM_500 = ("sh", "-c", "test {step} -lt 500", "{ckpt}")


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    """A cluster with two CPUs; what it leaves behind when it ends is looked for."""
    home = tmp_path_factory.mktemp("home")
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ["HOME"] = str(home)
    try:
        executor = OnRay(2)
        folder = executor._cluster.folder
        assert folder is not None
        assert _processes(folder)
        yield executor
        executor.close()
        deadline = time.monotonic() + 30
        while (left := _processes(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left
        assert not Path(folder).exists()
        assert not list(home.iterdir())
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight checkpoints, steps 100 to 800."""
    folder = tmp_path_factory.mktemp("archive")
    for step in range(100, 900, 100):
        torch.save({"step": step, "w": torch.ones(2)}, folder / f"step-{step}.pt")
    return folder


def _processes(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if word in line:
            found.append(line)
    return found


def _searched(
    archive: Path, executor: Executor, command: tuple[str, ...] = FROM_500, **options: Any
) -> Result:
    oracle = CommandOracle(command)
    return find_bracket(index(archive), oracle, None, lambda _: None, executor=executor, **options)


def test_the_answer_is_that_of_this_machine(on_ray: OnRay, archive: Path) -> None:
    found = [_searched(archive, one).as_dict() for one in (Local(2), on_ray)]
    assert (found[1]["last_clean"], found[1]["first_corrupt"]) == (400, 500)
    for one in found:
        one["probes"] = sorted(one["probes"], key=lambda probe: int(probe["step"]))
    assert found[0] == found[1]


def test_each_item_gets_its_answer_and_errors_come_last(on_ray: OnRay, archive: Path) -> None:
    oracle = CommandOracle(("sh", "-c", "test {step} -gt 100 || exit 7", "{ckpt}"))
    running = on_ray.run(oracle.judge, index(archive)[:5])
    answers = [next(running) for _ in range(4)]
    assert sorted(one.step for one, _ in answers) == [200, 300, 400, 500]
    assert {judgement.verdict for _, judgement in answers} == {"clean"}
    with pytest.raises(CommandFailed, match=r"ended with 7 on step 100: .*step-100\.pt") as caught:
        next(running)
    assert type(caught.value) is CommandFailed
    assert "it was run twice" in caught.value.next_step


def test_an_error_of_ours_is_itself_and_not_one_of_rays(on_ray: OnRay) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(on_ray.run(partial(operator.floordiv, 1), [0]))
    assert type(caught.value) is ZeroDivisionError


def test_a_worker_without_this_package_is_one_line(on_ray: OnRay) -> None:
    """Of this module no worker knows: it is not on their path."""
    with pytest.raises(UsageError, match=r"a Ray worker cannot judge: ModuleNotFoundError: .*test"):
        list(on_ray.run(_gone, ["anything"]))


def test_a_command_that_fails_stops_the_search(on_ray: OnRay, archive: Path) -> None:
    with pytest.raises(CommandFailed, match=r"ended with 7 on step [18]00: no output"):
        _searched(archive, on_ray, ("sh", "-c", "exit 7", "{ckpt}"))


def test_a_killed_worker_is_one_line_and_leaves_nothing(on_ray: OnRay, archive: Path) -> None:
    command = ("sh", "-c", "kill -9 $PPID; exec sleep 98765", "{ckpt}")
    with pytest.raises(CommandFailed, match=r"a worker ended while it judged step [18]00: ") as one:
        _searched(archive, on_ray, command)
    assert "\n" not in str(one.value)
    _gone("sleep 98765")


def test_a_checkpoint_that_workers_do_not_see_is_one_line(on_ray: OnRay, tmp_path: Path) -> None:
    unseen = [Checkpoint(step, tmp_path / f"{step}.pt", "torch", "untested") for step in (1, 2)]
    with pytest.raises(CommandFailed, match="does not see the checkpoint of step"):
        find_bracket(unseen, CommandOracle(FROM_500), None, lambda _: None, executor=on_ray)


def test_a_folder_that_workers_do_not_see_is_one_line(
    on_ray: OnRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "none")
    with pytest.raises(UsageError, match=r"a Ray worker cannot judge: No such file.*machine"):
        list(on_ray.run(len, ["a"]))


def test_ctrl_c_keeps_what_is_there_and_ends_the_rest(on_ray: OnRay, archive: Path) -> None:
    oracle = CommandOracle(("sh", "-c", "test {step} = 100 || exec sleep 98764", "{ckpt}"))
    candidates = index(archive)[:2]
    with closing(on_ray.run(oracle.judge, candidates)) as running:
        first, judgement = next(running)
        assert (first.step, judgement.verdict) == (100, "clean")
        while not _processes("sleep 98764"):
            time.sleep(0.05)
        with pytest.raises(KeyboardInterrupt):
            running.throw(KeyboardInterrupt())
    _gone("sleep 98764")


def test_the_command_says_what_it_says_elsewhere(
    on_ray: OnRay, archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("run", str(archive), "--executor", "ray", "--jobs", "2", "--json", "--", *FROM_500)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["first_corrupt"] == 500
    journal = (archive / ".sdc-bisect" / "0001" / "journal.jsonl").read_text().splitlines()
    probes = [event for line in journal if (event := json.loads(line))["event"] == "probe"]
    steps = {probe["step"] for probe in json.loads(done.stdout)["probes"]}
    assert {probe["step"] for probe in probes} == steps  # each once, by the driver
    assert len(probes) == len(steps)
    assert {probe["mark"]["content"][:9] for probe in probes} == {"xxh3_128:"}
    assert capfd.readouterr() == ("", "")  # nothing of Ray's
    assert list(on_ray.run(len, ["it is still there"])) == [("it is still there", 17)]


def _gone(word: str) -> None:
    deadline = time.monotonic() + 20
    while (left := _processes(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
