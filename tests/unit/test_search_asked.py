"""What a search says to those who ask: ends, skips, and ranges."""

from __future__ import annotations

import pytest
from searched import checkpoints, searched, table

from forensics.bracket import find_bracket
from forensics.reporting.result_lines import lines
from forensics.search.asked import Asked
from forensics.wording import sentence
from sdc_guard.errors import ArchiveIncomplete, UsageError


def text(result: object) -> str:
    return "\n".join(lines(result.as_dict()))  # type: ignore[attr-defined]


def test_only_untestable_ones_are_left() -> None:
    judge = table("ggguub", every=50)
    result = searched(judge)
    assert (result.last_clean, result.first_corrupt) == (150, 300)
    assert (result.exact, result.exit_code, result.skipped) == (False, 3, (200, 250))
    assert "is in (150, 300]; untestable: 200, 250; not proven" in sentence(result.as_dict())
    assert not any("no checkpoint between" in line for line in result.evidence)


def test_steps_to_skip_are_not_judged_and_are_told() -> None:
    judge = table("ggggbbb", every=50)
    result = searched(judge, Asked(skip=(200, 250)))
    assert not {200, 250} & set(judge.asked)
    assert (result.last_clean, result.first_corrupt, result.exact) == (150, 300, False)
    assert result.skipped == (200, 250)
    assert "skipped as asked: 200, 250" in result.evidence
    with pytest.raises(UsageError, match=r"--skip 77: no checkpoint of that step"):
        searched(judge, Asked(skip=(77,)))


def test_all_good() -> None:
    result = searched(table("ggggg"))
    assert (result.exit_code, result.first_corrupt, result.last_clean) == (0, None, 500)
    assert "Nothing corrupt was found up to step 500" in text(result)
    assert "2 of 5 checkpoints judged" in text(result)


def test_all_bad() -> None:
    result = searched(table("bbbbb"))
    assert (result.exit_code, result.first_corrupt, result.last_clean) == (1, 100, None)
    assert "checkpoint 100, the first one searched, is corrupt already" in text(result)


@pytest.mark.parametrize(("pattern", "code"), [("g", 0), ("b", 1)])
def test_one_checkpoint(pattern: str, code: int) -> None:
    judge = table(pattern)
    result = searched(judge)
    assert result.exit_code == code
    assert judge.asked == [100]
    if code:
        assert "checkpoint 100, the only one there is, is corrupt already" in text(result)
    else:
        assert "Nothing corrupt was found up to step 100" in text(result)


def test_none_can_be_judged() -> None:
    with pytest.raises(ArchiveIncomplete, match=r"none of 3 .* can be judged: is untestable"):
        searched(table("uuu"))
    with pytest.raises(ArchiveIncomplete, match=r"none of 1 .* can be judged: all are skipped"):
        searched(table("g"), Asked(skip=(100,)))
    with pytest.raises(ArchiveIncomplete, match=r"none of 0 checkpoints can be judged"):
        searched(table(""))


def test_the_newest_cannot_be_judged() -> None:
    result = searched(table("ggguu"))
    assert result.exit_code == 3
    assert "the newest cannot be judged: is untestable" in text(result)


def test_a_gap_leaves_a_range() -> None:
    judge = table("gg")
    judge.verdicts = {100: "clean", 200: "clean", 300: "clean", 500: "corrupt"}
    result = searched(judge)
    assert (result.last_clean, result.first_corrupt) == (300, 500)
    assert (result.exact, result.exit_code) == (False, 3)
    assert "no checkpoint between 300 and 500; they are usually 100 apart" in result.evidence


def test_ends_in_the_wrong_order() -> None:
    with pytest.raises(UsageError, match=r"bad is before good: swapped\?: --good 500 --bad 100"):
        searched(table("ggbbb"), Asked(good=500, bad=100))
    with pytest.raises(UsageError, match=r"good is before bad: swapped\?"):
        searched(table("ggbbb"), Asked(good=100, bad=500, first_good=True))
    with pytest.raises(UsageError, match="cannot be both"):
        searched(table("ggbbb"), Asked(good=100, bad=100))
    with pytest.raises(UsageError, match=r"--bad 450: no checkpoint .*there is 100, 200, 300"):
        searched(table("ggbbb"), Asked(bad=450))


def test_between_two_ends() -> None:
    judge = table("gbggggbbbg")
    result = searched(judge, Asked(good=300, bad=900))
    assert (result.last_clean, result.first_corrupt) == (600, 700)
    assert set(judge.asked) <= set(range(300, 1000, 100))
    assert {300, 900} <= set(judge.asked)


def test_an_end_that_is_not_what_it_is_said_to_be() -> None:
    with pytest.raises(UsageError, match=r"--bad 300 is clean by this judge: is clean"):
        searched(table("ggggbb"), Asked(bad=300))
    with pytest.raises(UsageError, match=r"--good 500 is corrupt by this judge"):
        searched(table("ggggbb"), Asked(good=500))


def test_trusted_ends_are_told() -> None:
    judge = table("ggggbb")
    result = searched(judge, Asked(trust_ends=True))
    assert not {100, 600} & set(judge.asked)
    assert (result.last_clean, result.first_corrupt, result.exact) == (400, 500, True)
    assert result.as_dict()["trusted"] == [100, 600]
    assert "the ends were trusted, not verified: 100 clean, 600 corrupt" in result.evidence
    # the answer is an end that nobody judged
    result = searched(table("gggggg"), Asked(trust_ends=True))
    assert (result.last_clean, result.first_corrupt, result.exact) == (500, 600, False)
    assert result.exit_code == 3
    with pytest.raises(UsageError, match="cannot be both ends"):
        searched(table("g"), Asked(trust_ends=True))
    with pytest.raises(ArchiveIncomplete, match="both ends were trusted"):
        searched(table("gb"), Asked(trust_ends=True))


def test_the_first_good_one_after_bad_ones() -> None:
    judge = table("bbbbggg")
    result = searched(judge, Asked(first_good=True))
    found = result.as_dict()
    assert (found["last_corrupt"], found["first_clean"]) == (400, 500)
    assert (found["last_clean"], found["first_corrupt"]) == (None, None)
    assert (result.exact, result.exit_code, result.proven) == (True, 1, False)
    assert "Checkpoint 500, if what is clean stays clean, is the first clean one" in text(result)
    nothing = searched(table("ggg"), Asked(first_good=True))
    assert nothing.exit_code == 0
    assert "Nothing corrupt was found: checkpoint 100 is clean already" in text(nothing)
    never = searched(table("bbb"), Asked(first_good=True))
    assert never.exit_code == 3
    assert "No clean checkpoint follows: corrupt up to step 300" in text(never)
    hole = searched(table("bbugg"), Asked(first_good=True))
    assert hole.exit_code == 3
    assert "is in (200, 400]; untestable: 300" in text(hole)
    part = searched(table("gbbbgg"), Asked(first_good=True, bad=200, good=600))
    assert part.as_dict()["first_clean"] == 500


def test_each_judging_is_told_once() -> None:
    told: list[str] = []
    judge = table("g" * 40 + "b" * 24)
    searched(judge, told=told)
    assert told == [f"step {s}: {judge.verdicts[s]}, is {judge.verdicts[s]}" for s in judge.asked]
    assert len(judge.asked) == len(set(judge.asked)) <= 8


def test_an_exact_oracle_confirms_the_bracket_of_a_cheap_one() -> None:
    pattern = "g" * 20 + "b" * 12
    cheap, exact = table(pattern), table(pattern, proves=True, persists=True)
    cheap.rotten = frozenset(cheap.verdicts)  # what the cheap one says counts no more
    result = searched(cheap, confirm=exact)
    assert result.kind is None
    assert sorted(exact.asked) == [2000, 2100]
    assert len(cheap.asked) <= 7
    assert (result.last_clean, result.first_corrupt, result.proven) == (2000, 2100, True)


@pytest.mark.parametrize("edge", [0, 1, 5, 19, 20, 21, 26, 31, 32])
def test_an_exact_oracle_that_disagrees_goes_on_alone(edge: int) -> None:
    cheap = table("g" * 20 + "b" * 12)
    exact = table("g" * edge + "b" * (32 - edge), proves=True, persists=True)
    result = searched(cheap, confirm=exact)
    assert result.first_corrupt == (None if edge == 32 else (edge + 1) * 100)
    assert result.last_clean == (edge * 100 or None)
    assert len(exact.asked) == len(set(exact.asked))
    # both of the bracket, an end, and what is left; where all is clean everything is read
    assert len(exact.asked) <= (2 + 1 + 5 if edge < 32 else 32)


def test_what_the_cheap_one_cannot_judge_the_exact_one_may() -> None:
    result = searched(table("gguubb"), confirm=table("gggbbb", proves=True, persists=True))
    assert (result.last_clean, result.first_corrupt, result.exact) == (300, 400, True)


def test_what_is_known_from_before_is_not_judged_again() -> None:
    judge = table("g" * 20 + "b" * 12)
    before = searched(judge)
    judge.asked.clear()
    candidates = checkpoints(list(judge.verdicts))
    known = {
        one: judge.judge(one)
        for one in candidates
        if one.step in {probe["step"] for probe in before.probes[:3]}
    }
    judge.asked.clear()
    again = find_bracket(candidates, judge, None, lambda _: None, known=known)
    assert judge.asked == [probe["step"] for probe in before.probes[3:]]
    assert (again.last_clean, again.first_corrupt) == (2000, 2100)
    assert [probe["oracle"] for probe in again.probes[:4]] == ["known before"] * 3 + ["table"]


def test_an_archive_of_two_attempts_with_the_same_step() -> None:
    judge = table("ggb")
    twice = checkpoints([100, 200, 200, 300])
    result = find_bracket(twice, judge, None, lambda _: None)
    assert (result.last_clean, result.first_corrupt) == (200, 300)
