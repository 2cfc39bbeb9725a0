"""Who differs, and whether they were ever alike: the pure judgement, on digests made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.detect.replicas import (
    INPUT,
    LOSS,
    Finding,
    How,
    Part,
    ReplicaJudge,
    Unit,
    classes,
    majority,
)


def unit(how: How = "declared", parts: int = 2) -> Unit:
    kind = {"input": INPUT, "loss": LOSS}.get(how, "param")
    return Unit(how, how, tuple(Part(kind, n, 4, "float32", 0) for n in range(parts)))


def table(values: Mapping[int, list[int]]) -> dict[int, np.ndarray]:
    """The same number in all three columns."""
    return {rank: np.array(own)[:, None].repeat(3, axis=1) for rank, own in values.items()}


def judged(
    judge: ReplicaJudge, step: int, of: Unit, values: Mapping[int, list[int]]
) -> list[Finding]:
    return judge.explained(judge.judge(step, of, table(values)))


def short(findings: list[Finding]) -> list[tuple[str, list[int], tuple[int, ...]]]:
    return [(f.state, [part.layer for part in f.parts], f.odd) for f in findings]


ALIKE = {0: [1, 2], 1: [1, 2], 2: [1, 2]}


@given(values=st.dictionaries(st.integers(0, 20), st.sampled_from([b"a", b"b", b"c"]), min_size=1))
def test_a_majority_is_more_than_half_that_are_equal(values: dict[int, bytes]) -> None:
    most = majority(values)
    counts = [list(values.values()).count(value) for value in values.values()]
    assert bool(most) == (max(counts) * 2 > len(values))
    assert len({values[rank] for rank in most}) <= 1
    assert sorted(rank for group in classes(values) for rank in group) == sorted(values)
    if most:
        assert [r for r in values if values[r] == values[most[0]]] == sorted(
            most, key=list(values).index
        )


@given(world=st.integers(3, 9), data=st.data(), declared=st.booleans())
def test_any_minority_that_was_alike_is_named(
    world: int, data: st.DataObject, *, declared: bool
) -> None:
    of = unit("declared" if declared else "assumed")
    odd = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=(world - 1) // 2))
    judge = ReplicaJudge()
    for step in range(2):
        assert judged(judge, step, of, {rank: [step, step] for rank in range(world)}) == []
    values = {rank: [9, 100 + rank if rank in odd else 5] for rank in range(world)}
    (finding,) = judged(judge, 2, of, values)
    assert short([finding]) == [("out", [1], tuple(sorted(odd)))]
    good, bad = finding.pair
    assert good not in odd
    assert bad in odd
    assert judged(judge, 3, of, values) == []


def test_two_ranks_differ_and_nobody_is_named() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), {0: [1, 2], 1: [1, 2]})
    (finding,) = judged(judge, 1, unit(), {0: [1, 2], 1: [1, 3]})
    assert short([finding]) == [("out", [1], ())]
    assert finding.pair == (0, 1)


def test_a_tie_names_nobody() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), {rank: [1, 2] for rank in range(4)})
    (finding,) = judged(judge, 1, unit(), {0: [1, 2], 1: [1, 2], 2: [1, 3], 3: [1, 3]})
    assert short([finding]) == [("out", [1], ())]
    assert finding.pair == (0, 2)


@pytest.mark.parametrize(("how", "state"), [("declared", "never"), ("assumed", "own")])
def test_replicas_that_were_never_alike_are_told_so_once(how: How, state: str) -> None:
    judge = ReplicaJudge()
    assert short(judged(judge, 0, unit(how), ALIKE | {2: [1, 7]})) == [(state, [1], ())]
    assert judged(judge, 1, unit(how), ALIKE | {2: [1, 8]}) == []
    assert judged(judge, 2, unit(how), {0: [1, 3], 1: [1, 4], 2: [1, 4]}) == []


def test_a_part_that_is_alike_by_chance_among_others_that_never_were_is_not_believed() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), ALIKE | {2: [1, 7]})
    assert short(judged(judge, 1, unit(), ALIKE | {2: [3, 8]})) == [("never", [0], ())]


def test_a_part_that_changes_alike_is_believed_though_others_never_were_in_sync() -> None:
    judge = ReplicaJudge()
    for step in range(2):
        judged(judge, step, unit(), {rank: [step, rank] for rank in range(3)})
    assert short(judged(judge, 2, unit(), {0: [5, 0], 1: [6, 1], 2: [5, 2]})) == [
        ("out", [0], (1,))
    ]


def test_all_of_them_apart_is_not_one_ranks_fault() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), ALIKE)
    assert short(judged(judge, 1, unit(), {0: [1, 2], 1: [1, 3], 2: [1, 4]})) == [
        ("apart", [1], ())
    ]


def test_what_is_only_assumed_must_have_changed_alike_before_it_is_believed() -> None:
    judge = ReplicaJudge()
    of = unit("assumed")
    for step in range(3):  # experts from one seed, with a learning rate of zero
        judged(judge, step, of, ALIKE)
    assert short(judged(judge, 3, of, ALIKE | {2: [1, 7]})) == [("own", [1], ())]
    judged(judge, 4, of, {rank: [5, rank] for rank in range(3)})
    judged(judge, 5, of, {rank: [6, rank] for rank in range(3)})
    assert short(judged(judge, 6, of, {0: [7, 0], 1: [7, 1], 2: [8, 2]})) == [("out", [0], (2,))]


def test_a_rank_that_was_not_compared_has_not_changed_alike() -> None:
    judge, of = ReplicaJudge(), unit("assumed")
    judged(judge, 0, of, {0: [1, 2], 1: [1, 2]})
    judged(judge, 1, of, {0: [3, 2], 1: [3, 2], 2: [3, 2]})
    assert short(judged(judge, 2, of, {0: [4, 2], 1: [4, 2], 2: [5, 2]})) == [("own", [0], ())]


def test_units_that_were_alike_as_a_whole_count_for_their_parts() -> None:
    for how, times, state in (
        ("declared", 1, "out"), ("assumed", 1, "own"), ("assumed", 2, "out"), ("input", 1, "out"),
    ):  # fmt: skip
        judge = ReplicaJudge()
        for time in range(times):
            judge.alike(how, how, (0, 1, 2), b"%d" % time)  # type: ignore[arg-type]
        found = judged(judge, 9, unit(how), ALIKE | {0: [3, 2]})  # type: ignore[arg-type]
        assert short(found) == [(state, [0], () if state == "own" else (0,))]


def test_a_rank_that_is_known_to_be_out_is_told_again_for_what_is_new_only() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), ALIKE)
    assert short(judged(judge, 1, unit(), ALIKE | {2: [1, 3]})) == [("out", [1], (2,))]
    assert judged(judge, 2, unit(), ALIKE | {2: [1, 4]}) == []
    assert short(judged(judge, 3, unit(), ALIKE | {2: [0, 5]})) == [("out", [0], (2,))]
    judged(judge, 4, unit(), ALIKE)  # put right by the script
    assert short(judged(judge, 5, unit(), ALIKE | {2: [1, 6]})) == [("out", [1], (2,))]


def test_parts_that_differ_alike_are_one_finding() -> None:
    judge = ReplicaJudge()
    judged(judge, 0, unit(), ALIKE)
    assert short(judged(judge, 1, unit(), ALIKE | {1: [8, 9]})) == [("out", [0, 1], (1,))]


@pytest.mark.parametrize("other", ["input", "declared"])
def test_the_input_and_the_state_explain_the_loss(other: How) -> None:
    judge = ReplicaJudge()
    loss, of = unit("loss", 1), unit(other, 1)
    for step in range(2):
        judge.alike("loss", "loss", (0, 1, 2), b"%d" % step)
        judge.alike(other, other, (0, 1, 2), b"same")
    bad = {0: [1], 1: [1], 2: [5]}
    both = [*judge.judge(2, loss, table(bad)), *judge.judge(2, of, table(bad))]
    assert [f.how for f in judge.explained(both)] == [other]
    # and later: the rank is known to be out
    more = judge.judge(3, loss, table({0: [1], 1: [4], 2: [5]}))
    assert judge.explained(more) == []


def test_a_loss_that_nothing_explains_is_told() -> None:
    judge = ReplicaJudge()
    for step in range(2):
        judge.alike("loss", "loss", (0, 1, 2), b"%d" % step)
    assert short(judged(judge, 2, unit("loss", 1), {0: [1], 1: [1], 2: [5]})) == [
        ("out", [0], (2,))
    ]


def test_apart_is_what_should_be_the_same_and_is_not_also_when_it_was_told() -> None:
    judge, of = ReplicaJudge(), unit("assumed")
    for step in range(2):
        judged(judge, step, of, {rank: [step, 10 * rank] for rank in range(2)})
    assert not judge.apart  # the second part is each rank's own, and nothing declares it
    for step in (2, 3):
        judge.apart = False
        judged(judge, step, of, {0: [step, 0], 1: [step + 1, 10]})
        assert judge.apart, step
    judge = ReplicaJudge()
    judged(judge, 0, unit(), {0: [1, 1], 1: [1, 2]})
    assert judge.apart  # declared, and never the same
    judge = ReplicaJudge()
    judged(judge, 0, unit("loss", 1), {0: [1], 1: [2]})
    assert not judge.apart  # not of the state
