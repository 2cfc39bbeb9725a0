"""kill -9 in the middle of `sdc-guard keep --apply`, while the training saves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from click.testing import CliRunner

from sdc_guard import load_checkpoint
from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import TensorEntry
from sdc_guard.archive.restore import checkpoints
from sdc_guard.archive.save import LATEST, save_checkpoint
from sdc_guard.cli import main
from sdc_guard.digest import digest_tensor
from sdc_guard.store.run_file import Attempt, RunFile

# the command itself, but a folder takes half a second from its first file to its last
SLOW = """
import contextlib, os, shutil, sys, time
def slowly(path, **_):
    with contextlib.suppress(OSError, IndexError):  # a save removes such folders, too
        names = sorted(os.listdir(path))
        os.unlink(os.path.join(path, names[0]))
        time.sleep(0.5)
        for name in names[1:]:
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
shutil.rmtree = slowly
from sdc_guard.cli import main
main(sys.argv[1:], prog_name="sdc-guard")
"""


def save(archive: Path, step: int) -> None:
    payload = {"step": step, "w": torch.full((100,), float(step))}
    expected = {"w": TensorEntry.of(digest_tensor(payload["w"]), "param", "w")}
    save_checkpoint(archive, step, 1, payload, expected, [])


def half_deleted(archive: Path) -> bool:
    with contextlib.suppress(OSError):  # it is gone by now
        return any(len(list(one.iterdir())) == 1 for one in archive.glob(".step=*.deleted"))
    return False


def number_gone(archive: Path) -> int:
    return 12 - sum((archive / f"step={step:06d}").exists() for step in range(12))


def test_what_is_left_is_whole_and_the_next_one_goes_on(tmp_path: Path) -> None:
    run, archive = tmp_path / "run", tmp_path / "run" / "archive"
    (run / "trace").mkdir(parents=True)
    RunFile("run", 1, (), (Attempt(1, 0, 0.0),)).write(run)
    for step in range(12):
        save(archive, step)
    options = ["keep", str(run), "--count", "3", "--policy", "keep-last", "--apply"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *options], start_new_session=True)
    deadline, saved, gone = time.monotonic() + 120, 12, 0
    while not (gone >= 3 and half_deleted(archive)):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "it did not come so far in time"
        now = number_gone(archive)
        if now > gone:
            gone = now
            save(archive, saved)  # while it deletes
            saved += 1
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    def whole() -> list[int]:
        found = checkpoints(archive)
        assert len(found) == len(list(archive.glob("step=*")))
        assert all(one.clean and check_bytes(one.folder, one.manifest).sound for one in found)
        return [one.manifest.step for one in found]

    assert whole() == list(
        range(number_gone(archive), saved)
    )  # what was half deleted is no checkpoint
    assert (archive / LATEST).read_text() == f"step={saved - 1:06d}\n"
    assert load_checkpoint(run)["step"] == saved - 1

    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert whole() == [saved - 3, saved - 2, saved - 1]
    assert not list(archive.glob(".step=*"))
