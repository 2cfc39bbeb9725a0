"""What is kept whole, what as weights alone, and what goes; on archives that are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.archive.retention.names import NAMES
from sdc_guard.archive.retention.plan import Plan, plan
from sdc_guard.archive.retention.rule import Rule
from sdc_guard.archive.retention.stored import Archive, OpenIncident, Span, Stored

HOUR = 3600.0
NOW = 1e9


def whole(number: int, **changes: object) -> Stored:
    """The save of an hour."""
    one = Stored(
        f"step={number:06d}", number, number, 1, number * 6 * HOUR, 300, has_weights=True,
        identity=(number, 1, 1),
    )  # fmt: skip
    return replace(one, **changes)  # type: ignore[arg-type]


def copy_of(one: Stored) -> Stored:
    """The copy of its weights."""
    name = one.name.replace("step", "weights")
    return replace(one, name=name, bytes=100, copy=True, identity=(one.step, 2, 2))


def carried_out(archive: Archive, found: Plan) -> Archive:
    """The archive after what a plan says."""
    stored = [one for one in archive.stored if one.name not in {*found.goes, *found.thins}]
    there = {one.name for one in stored}
    made = [copy_of(one) for one in archive.stored if one.name in found.thins]
    return replace(archive, stored=(*stored, *(one for one in made if one.name not in there)))


def kinds(stored: Iterable[Stored]) -> tuple[int, int]:
    """(whole ones, copies)."""
    copies = [one.copy for one in stored]
    return copies.count(False), copies.count(True)


@pytest.mark.parametrize("policy", NAMES)
def test_so_many_stay_whole_and_so_many_more_as_copies_save_after_save(policy: str) -> None:
    archive, rule = Archive(()), Rule(4, policy, weights=6, spacing=(0.25, 1.0), horizon=30.0)
    for number in range(60):
        archive = replace(archive, stored=(*archive.stored, whole(number)))
        archive = carried_out(archive, plan(archive, rule, NOW))
        wholes, copies = kinds(archive.stored)
        # one oldest may stay whole beside the count
        assert wholes == min(number + 1, 4)
        assert copies == min(max(0, number + 1 - 4), 6)
        again = plan(archive, rule, NOW)
        assert (again.goes, again.thins) == ((), ())
    assert archive.stored


def test_of_the_newest_the_weights_follow_the_whole_ones() -> None:
    stored = tuple(map(whole, range(10)))
    found = plan(Archive(stored), Rule(3, "keep-last", weights=4), NOW)
    assert [one.step for one in carried_out(Archive(stored), found).stored if not one.copy] == [
        7, 8, 9,
    ]  # fmt: skip
    assert found.thins == tuple(f"step={n:06d}" for n in (3, 4, 5, 6))
    assert found.goes == tuple(f"step={n:06d}" for n in (0, 1, 2))
    assert found.freed == 900


def test_copies_are_left_alone_unless_somebody_says_how_many() -> None:
    stored = (*(copy_of(whole(n)) for n in range(5)), *map(whole, range(5, 8)))
    assert plan(Archive(stored), Rule(3, "keep-last"), NOW).goes == ()
    found = plan(Archive(stored), Rule(3, "keep-last", weights=0), NOW)
    assert set(found.goes) == {one.name for one in stored if one.copy}
    assert found.thins == ()


def test_pins_searches_and_open_incidents_count_for_both() -> None:
    stored = (*(copy_of(whole(n)) for n in range(4)), *map(whole, range(4, 12)))
    rule = Rule(1, "keep-last", weights=0)
    pinned = replace(Archive(stored), pins=frozenset({"weights=000001", "step=000005"}))
    left = carried_out(pinned, plan(pinned, rule, NOW)).stored
    assert [one.name for one in left] == ["weights=000001", "step=000005", "step=000011"]
    searched = replace(Archive(stored), spans=(Span(2, 6, "searched"),))
    left = carried_out(searched, plan(searched, rule, NOW)).stored
    assert [one.step for one in left] == [2, 3, 4, 5, 6, 11]
    assert kinds(left) == (4, 2)
    incident = replace(Archive(stored), incidents=(OpenIncident(7, 7, True, 1),))
    found = plan(incident, Rule(1, "keep-last", weights=9), NOW)
    assert found.thins == ("step=000004",)  # from the last clean one before it on all stay whole


def test_a_copy_is_no_place_to_go_back_to() -> None:
    stored = (copy_of(whole(1)), whole(2, status="suspect"))
    assert plan(Archive(stored), Rule(1, weights=0), NOW).goes == ()
    assert "no clean checkpoint" in str(
        plan(Archive(stored), Rule(1, weights=0), NOW).rows[0].stays
    )


def test_what_a_killed_process_left_is_finished() -> None:
    stored = tuple(map(whole, range(4)))
    both = Archive((*stored, copy_of(stored[1])))
    found = plan(both, Rule(1, "keep-last", weights=2), NOW)
    assert found.thins == ("step=000001", "step=000002")
    assert found.goes == ("step=000000",)
    stays = plan(both, Rule(3, "keep-last", weights=2), NOW)  # it stays whole: the copy is no use
    assert stays.goes == ("weights=000001",)
    assert stays.thins == ("step=000000",)


def test_one_without_known_parameters_is_deleted() -> None:
    stored = (whole(0, has_weights=False), whole(1), whole(2))
    found = plan(Archive(stored), Rule(1, "keep-last", weights=2), NOW)
    assert (found.goes, found.thins) == (("step=000000",), ("step=000001",))


@given(st.data())
def test_nothing_is_thinned_or_deleted_that_is_held_and_no_whole_one_more_goes(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 14))
    copied = data.draw(st.integers(0, count - 1))
    stored = [copy_of(whole(n)) if n < copied else whole(n) for n in range(count)]
    pins = data.draw(st.sets(st.sampled_from([one.name for one in stored])))
    archive = Archive(tuple(stored), pins=frozenset(pins))
    rule = Rule(
        data.draw(st.integers(1, 5)), data.draw(st.sampled_from(NAMES)), spacing=(0.25, 1.0)
    )
    with_copies = replace(rule, weights=data.draw(st.integers(0, 5)))
    before, after = plan(archive, rule, NOW), plan(archive, with_copies, NOW)
    assert not pins & {*after.goes, *after.thins}
    assert not {*after.goes} & {*after.thins}
    gone = {name for name in (*after.goes, *after.thins) if name.startswith("step")}
    assert gone == set(before.goes)  # which stay whole does not depend on the copies
    assert (after.excess, after.uncovered) == (before.excess, before.uncovered)
