"""The known answer among ranks, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def told(folder: Path, world: int, faulty: int) -> list[Any]:
    """What each rank tells."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = str(HERE / "known_answer_ranks.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world), str(folder), str(faulty)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(world)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(outputs)
    return [
        json.loads((folder / f"told.{rank}.json").read_text(encoding="utf-8"))
        for rank in range(world)
    ]


@pytest.mark.slow
def test_a_majority_of_ranks_names_the_one_that_computes_wrongly(tmp_path: Path) -> None:
    ranks = told(tmp_path, 3, faulty=2)
    for rank in ranks:
        assert rank["sound"] == {"alerts": [], "errors": 0, "last_error": ""}
        assert rank["faulty"]["errors"] == 0, rank["faulty"]["last_error"]
    # any rank may have been the first to record its answer: that the others differ blames nobody
    proven = [[x for x in rank["faulty"]["alerts"] if x[0] == "proven"] for rank in ranks]
    assert [[kind for _, kind, _ in alerts] for alerts in proven] == [
        ["ranks differ"],
        [],
        ["ranks differ"],
    ]
    assert [detail["ranks"] for _, _, detail in proven[0]] == [[2]]
