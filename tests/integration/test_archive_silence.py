"""A rank that dies while a checkpoint is written is noticed by its silence; a slow one has none."""

from __future__ import annotations

import signal

import pytest
from distributed_archive import SILENCE
from distributed_launch import Outcome, launch


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """On two processes, of which the second is killed."""
    return launch(tmp_path_factory.mktemp("two"), 2, ["archive_silence"])


def test_a_slow_rank_is_waited_for_and_a_killed_one_is_named(two: Outcome) -> None:
    told = two.told("archive_silence", 0)
    assert two.codes == (0, -signal.SIGKILL), two.output()
    slow, killed = told["folders"]
    assert (slow.name, killed, told["said"][0]) == ("step=000001", None, "")
    silent = f"rank 1 has given no sign of life for {SILENCE:g} s: killed, stopped, or cut off"
    assert silent in told["said"][1]
    assert told["left"] == ["LATEST", "step=000001"]  # nothing partial
    assert told["events"] == [(0, 1, silent)]
