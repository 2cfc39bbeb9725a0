"""A damaged file and a training that went wrong are told apart, each with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from searched import OF, Table, searched

from forensics.checkpoint import Checkpoint
from forensics.oracles.judgement import Judgement
from forensics.reporting.result_lines import lines
from forensics.result import STORED_BYTES, Result
from forensics.search.asked import Asked
from forensics.two_findings import state_of
from forensics.wording import sentence


@dataclass
class Judge(Table):
    """As a table; what is rotten is corrupt by its file, whatever its state."""

    told: list[int] = field(default_factory=list)

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        if self.verdicts[checkpoint.step] == "corrupt":  # the record comes before the file
            self.told.append(checkpoint.step)
            return Judgement("corrupt", "weight w changed between step 449 and step 450")
        if checkpoint.step in self.rotten:
            return Judgement("corrupt", "w: CRC mismatch", stored_bytes=True)
        return Judgement(self.verdicts[checkpoint.step], "as recorded")


def judge(pattern: str, *rotten: int, trace: bool = True) -> Judge:
    verdicts = {(place + 1) * 100: OF[one] for place, one in enumerate(pattern)}
    return Judge(verdicts, proves=True, persists=trace, rotten=frozenset(rotten))


def told(result: Result) -> str:
    return sentence(result.as_dict())


def test_a_damaged_file_of_a_sound_training_is_only_that() -> None:
    result = searched(judge("gggggggg", 200))
    assert (result.last_clean, result.first_corrupt, result.exact) == (100, 200, True)
    assert (result.kind, result.damaged_files) == (STORED_BYTES, (200,))
    assert result.exit_code == 1
    assert result.state is not None
    assert (result.state.verdict, result.state.last_clean) == ("sound", 800)
    assert told(result) == (
        "Checkpoint 200 is the first corrupt one by its file, which is damaged: bracket "
        "(100, 200], proven; do not restore from it. The training was not affected: its state is "
        "clean up to checkpoint 800."
    )
    assert result.evidence[0] == "w: CRC mismatch"
    assert not any("monotone" in line for line in result.evidence)


@pytest.mark.parametrize("scan", [False, True])
def test_both_are_named_where_both_are_seen(scan: bool) -> None:
    # eight checkpoints, state wrong from 500 on; binary search meets 400, which rotted
    result = searched(judge("ggggbbbb", 400), Asked(scan=scan))
    assert (result.last_clean, result.first_corrupt) == (300, 400)
    assert result.damaged_files == (400,)
    assert result.state is not None
    assert result.state.verdict == "corrupt"
    first, last = result.state.first_corrupt, result.state.last_clean
    assert first is not None
    assert last is not None
    assert last < 500 <= first  # the bracket holds the truth
    assert first == 500 or not scan
    assert f"The training went wrong, too: its state in ({last}, {first}], proven." in told(result)
    (line,) = [line for line in result.evidence if line.startswith("a second finding")]
    assert "weight w changed between step 449 and step 450" in line
    assert result.evidence[0] == "w: CRC mismatch"


def test_checksums_say_nothing_of_the_training() -> None:
    result = searched(judge("gggggg", 200, trace=False))
    assert result.state is not None
    assert result.state.verdict == "unknown"
    assert told(result).endswith("Whether the training was sound is not shown by bytes.")


def test_a_damaged_file_at_the_end_leaves_the_training_open_after_the_last_clean_one() -> None:
    result = searched(judge("gggg", 400))
    assert told(result).endswith("Of the training: its state is clean up to checkpoint 300.")


def test_a_state_that_went_wrong_is_told_as_before() -> None:
    result = searched(judge("ggggbbbb"))
    assert (result.state, result.damaged_files, result.kind) == (None, (), None)
    assert told(result) == "Checkpoint 500 is the first corrupt one: bracket (400, 500], proven."
    assert "state" not in result.as_dict()


def test_other_damaged_files_are_named() -> None:
    result = searched(judge("gggggggg", 200, 700), Asked(scan=True))
    assert result.damaged_files == (200, 700)
    assert "damaged, too, of those judged: the files of checkpoint 700" in result.evidence


def test_what_is_stored_is_read_again_with_both_findings() -> None:
    result = searched(judge("ggggbbbb", 400))
    stored = result.as_dict()
    again = Result.of_bracket(stored)
    assert (again.state, again.damaged_files) == (result.state, result.damaged_files)
    del stored["state"]  # as an earlier version kept it
    assert lines(stored)[0].startswith("Checkpoint 400 is the first corrupt one: bracket")


def test_the_training_is_bracketed_by_the_nearest_of_those_judged() -> None:
    clean, wrong = Judgement("clean", ""), Judgement("corrupt", "w")
    rotten = Judgement("corrupt", "", stored_bytes=True)
    judged = {0: clean, 1: rotten, 2: clean, 5: wrong, 7: wrong}
    found = state_of(range(100, 900, 100), judged, judge("gggggggg"))
    assert (found.last_clean, found.first_corrupt) == (300, 600)
