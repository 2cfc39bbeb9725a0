"""kill -9 in the middle of a restore, and of processes that share a cache."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import preloaded

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("restore_killed.py")


def test_what_is_left_is_whole_or_not_there(tmp_path: Path, seed: int) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [preloaded.python(), str(SCRIPT), str(tmp_path), str(seed)],
        capture_output=True, text=True, env=environment, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok "), done.stdout
    happened = ast.literal_eval(done.stdout.removeprefix("ok "))
    print(happened)
    assert happened["partial"] > 1  # of 8
    assert happened["killed reader"] > 1
