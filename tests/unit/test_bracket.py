"""What `run` says of checkpoints, and from where `verify` replays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from forensics.bracket import find_bracket
from forensics.checkpoint import Checkpoint
from forensics.interval import asked
from forensics.oracles.judgement import Judgement
from forensics.reporting.result_lines import lines
from forensics.result import Result
from forensics.wording import sentence
from sdc_guard.errors import UsageError

NAN = "not finite: 0.weight param"


@dataclass
class Judge:
    """Says that checkpoints from a step on are corrupt."""

    corrupt: int = 10**9
    proves: bool = True
    persists: bool = True
    concurrent: bool = False
    cost: float | None = None
    name: str = "judge"

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        return Judgement("corrupt" if checkpoint.step >= self.corrupt else "clean", "bits")


def checkpoint(step: int, *reasons: str) -> Checkpoint:
    return Checkpoint(step, Path(str(step)), "torch", "suspect" if reasons else "clean", reasons)


DOUBTED = [checkpoint(100), checkpoint(150, NAN), checkpoint(200, NAN, "x"), checkpoint(250)]


def test_suspect_checkpoints_are_told_although_their_bits_are_those_of_the_trace() -> None:
    told: list[str] = []
    result = find_bracket(DOUBTED, Judge(), None, told.append)
    assert (result.exit_code, result.first_corrupt) == (3, None)
    assert result.as_dict()["suspect"] == [
        {"step": 150, "reasons": [NAN]},
        {"step": 200, "reasons": [NAN, "x"]},
    ]
    assert sentence(result.as_dict()) == (
        "Suspect, not proven: checkpoints 150, 200; nothing corrupt was found up to step 250; "
        "untestable: none."
    )
    assert result.evidence[-2] == (
        f"2 checkpoints are suspect: steps 150, 200; that of step 150 because: {NAN}"
    )
    assert "a replay from step 100 to step 150 runs" in result.evidence[-1]
    assert "step 150: clean, bits (suspect when it was saved)" in told
    assert "step 100: clean, bits" in told
    assert Result.of_bracket(result.as_dict()).suspect == result.suspect


def test_what_is_corrupt_explains_what_is_suspect_after_it() -> None:
    result = find_bracket(DOUBTED, Judge(corrupt=150), None, lambda _: None)
    assert result.first_corrupt == 150
    assert not any("suspect" in line for line in result.evidence)
    assert [one["step"] for one in result.suspect] == [150, 200]


def test_a_judge_of_the_users_own_is_not_told_what_it_can_not_see() -> None:
    result = find_bracket(DOUBTED, Judge(proves=False), None, lambda _: None)
    assert "2 checkpoints are suspect" in result.evidence[-1]


def test_the_first_one_has_no_checkpoint_before_it() -> None:
    result = find_bracket([checkpoint(50, NAN)], Judge(), None, lambda _: None)
    assert result.evidence[-2].startswith("1 checkpoint is suspect: step 50 because: ")
    assert "a replay from a checkpoint before " in result.evidence[-1]


def test_from_the_last_checkpoint_the_replay_goes_to_the_last_recorded_step() -> None:
    found = [checkpoint(50), checkpoint(100)]
    assert asked(found, 100, None, 140).until == 140
    assert asked(found, 50, None, 140).until == 100
    assert asked(found, 50, 80, 140).until == 80
    for recorded in (None, 100):
        with pytest.raises(UsageError, match="nothing is recorded after step 100"):
            asked(found, 100, None, recorded)
    with pytest.raises(UsageError, match="swapped"):
        asked(found, 100, 90, 140)


def test_tensors_that_are_left_out_of_the_table_are_counted() -> None:
    result = Result("verify", 10, 11, exact=True, proven=True, more_tensors=5).as_dict()
    assert result["more_tensors"] == 5
    row = {"kind": "param", "name": "w"}
    assert lines({**result, "tensors": [row]})[-1] == "and 5 more tensors of the same step"
    assert "more tensors" not in "".join(lines({**result, "tensors": [row], "more_tensors": 0}))
