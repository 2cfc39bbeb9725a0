"""Archives in which corruption comes and goes: never a false "first"."""

from __future__ import annotations

import random

import pytest
from searched import Table, searched, table

from forensics.executors.local import Local
from forensics.reporting.result_lines import lines
from forensics.search.asked import Asked
from forensics.wording import sentence


def two_episodes(rng: random.Random) -> str:
    parts = [rng.randint(1, 25) for _ in range(4)]
    tail = rng.choice([0, 0, rng.randint(1, 25)])
    text = "".join(one * n for one, n in zip("gbgb", parts, strict=True)) + "g" * tail
    return text if rng.random() < 0.9 else text.lstrip("g")


@pytest.mark.parametrize("jobs", [1, 3])
def test_two_hundred_archives_with_two_episodes(seed: int, jobs: int) -> None:
    rng = random.Random(seed)
    told_not_monotone = 0
    for _ in range(200):
        pattern = two_episodes(rng)
        judge = table(pattern)
        result = searched(judge, executor=Local(jobs))
        true_first = (pattern.index("b") + 1) * 100
        text = sentence(result.as_dict())
        if result.first_corrupt is None:
            # clean at both ends: nothing was found, and what may lie between is said
            assert (pattern[0], pattern[-1]) == ("g", "g")
            assert "is not seen: --scan" in " ".join(result.evidence)
            continue
        # a real transition in any case
        assert judge.verdicts[result.first_corrupt] == "corrupt"
        assert result.last_clean is None or judge.verdicts[result.last_clean] == "clean"
        if result.claim == "first":
            assert result.first_corrupt == true_first
        else:
            assert "if what is corrupt stays corrupt" in text or "not the first" in text
        judged = {step: judge.verdicts[step] for step in judge.asked}
        first = min(step for step, verdict in judged.items() if verdict == "corrupt")
        known = any(verdict == "clean" and step > first for step, verdict in judged.items())
        assert (result.monotone is False) == known
        if known and result.claim != "first":
            told_not_monotone += 1
            assert not result.exact
            assert not result.proven
            assert result.exit_code == 3
            assert "not the first" in text
    if jobs > 1:
        assert told_not_monotone > 0, "the test tries nothing"


def test_a_scan_lists_every_transition() -> None:
    judge = table("ggbbggb")
    result = searched(judge, Asked(scan=True))
    assert judge.asked == [100, 200, 300, 400, 500, 600, 700]
    assert result.as_dict()["transitions"] == [
        {"from": 200, "to": 300, "verdicts": ["clean", "corrupt"], "kind": "state"},
        {"from": 400, "to": 500, "verdicts": ["corrupt", "clean"], "kind": "state"},
        {"from": 600, "to": 700, "verdicts": ["clean", "corrupt"], "kind": "state"},
    ]
    assert (result.last_clean, result.first_corrupt, result.exact) == (200, 300, True)
    assert (result.claim, result.monotone) == ("first", False)
    text = "\n".join(lines(result.as_dict()))
    assert "Checkpoint 300 is the first corrupt one: bracket (200, 300]" in text
    assert "not monotone: checkpoint 500 is clean" in text
    assert "from corrupt to clean: (400, 500]" in text


def test_by_default_a_later_clean_one_that_is_known_is_told() -> None:
    # 3 at once: 300 and 700 judged corrupt, 500 clean between them
    result = searched(table("gubbggbbb"), executor=Local(7))
    assert result.first_corrupt == 300
    assert not result.exact
    text = sentence(result.as_dict())
    assert text.startswith("Not monotone: a transition, not the first, is in (100, 300]")
    assert any(line.startswith("not monotone: checkpoint") for line in result.evidence)


def test_the_first_one_corrupt_and_the_last_one_clean() -> None:
    result = searched(table("bbggg"))
    assert (result.last_clean, result.first_corrupt) == (None, 100)
    assert (result.claim, result.monotone) == ("first", False)
    assert "checkpoint 100, the first one searched, is corrupt already" in result.evidence[1]


def test_a_judge_whose_verdicts_last_needs_no_assumption() -> None:
    result = searched(table("ggggbbb", persists=True, proves=True))
    assert (result.claim, result.exact, result.proven) == ("first", True, True)
    assert "the bytes of 2 checkpoints before it were not read; --scan reads them, too" in (
        result.evidence
    )
    assert "if what is corrupt" not in sentence(result.as_dict())
    result = searched(table("ggggbbb"))
    assert (result.claim, result.exact, result.monotone) == ("transition", True, None)


def test_a_rotten_file_says_nothing_of_those_before_it() -> None:
    """Binary search meets 600 first; 200 rotted by itself."""
    judge = Table(
        dict.fromkeys(range(100, 700, 100), "clean") | {200: "corrupt", 600: "corrupt"},
        proves=True,
        persists=True,
        rotten=frozenset({200, 600}),
    )
    result = searched(judge)
    assert (result.last_clean, result.first_corrupt, result.exact) == (100, 200, True)
    assert len(judge.asked) == len(set(judge.asked))
    assert result.claim == "first"
