"""Two ranks train to the same bits with and without a shadow pass: parallel, sharded, both."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import preloaded
import pytest
from conftest import ROOT
from rank_setups import RANKS, STEPS, scenarios

LIMIT = 400  # seconds for everything; a rank that waits in vain gives up after 60
NAMES = list(scenarios(None))  # type: ignore[arg-type] # because only the ranks have a mesh


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by scenario."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("rank_setups.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(RANKS):
        with (folder / f"{rank}.log").open("w") as log:
            arguments = [
                preloaded.python(),
                script,
                str(rank),
                folder / "init",
                folder / f"{rank}.json",
            ]
            processes.append(
                subprocess.Popen(arguments, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        codes = [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = [(folder / f"{rank}.log").read_text() for rank in range(RANKS)]
    assert codes == [0] * RANKS, "\n".join(logs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", NAMES)
def test_setups_of_two_ranks_train_to_the_same_bits(name: str, found: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert name in found[rank], f"rank {rank} stopped at {list(found[rank])[-1]}"
        result = found[rank][name]
        assert "error" not in result, result["error"]
        if name == "careless":
            assert result["different"], "a pass that leaves parameters gathered is not seen"
            continue
        assert result["different"] == []
        assert len(result["losses"]) == STEPS
        assert all(first == second for first, second in result["losses"])
