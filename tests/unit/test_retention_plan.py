"""What no policy may delete: decided from the state of an archive alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.archive.retention.holds import NO_CLEAN
from sdc_guard.archive.retention.names import NAMES
from sdc_guard.archive.retention.plan import Plan, Rule, plan
from sdc_guard.archive.retention.stored import Archive, OpenIncident, Span, Stored

HOUR = 3600.0
NOW = 1e9


def stored(step: int, **changes: object) -> Stored:
    values = {"trace_step": step, "attempt": 1, "created": step * HOUR, "bytes": 10} | changes
    return Stored(f"step={step:06d}", step, **values)  # type: ignore[arg-type]


def steps(found: Plan) -> list[int]:
    return [row.stored.step for row in found.rows if row.stays is not None]


def decided(archive: Archive, count: int = 2, policy: str = "keep-last", **more: int) -> list[int]:
    return steps(plan(archive, Rule(count, policy, **more), NOW))


TEN = tuple(stored(step) for step in range(10))


def test_the_count() -> None:
    assert decided(Archive(TEN), 3) == [7, 8, 9]
    assert decided(Archive(TEN), 30) == list(range(10))


def test_pins_do_not_count() -> None:
    pinned = Archive(TEN, pins=frozenset({"step=000002", "step=000009", "step=000077"}))
    assert decided(pinned, 3) == [2, 6, 7, 8, 9]


def test_latest_and_the_newest_clean_one_stay() -> None:
    suspects = [stored(step, status="suspect") for step in (10, 11, 12)]
    archive = Archive((*TEN, *suspects), latest="step=000010")
    assert decided(archive, 1, suspects=0) == [9, 10]
    assert decided(Archive(TEN, latest="step=000004"), 2) == [4, 8, 9]


def test_what_is_not_clean_has_its_own_count() -> None:
    others = (
        stored(3, status="suspect"),
        stored(4, status="corrupt"),
        stored(5, doubted=True),
        stored(6, status="untested"),
        stored(7, superseded=True),
    )
    clean = tuple(stored(step) for step in (0, 1, 2, 8, 9))
    assert decided(Archive(clean + others), 2) == [6, 7, 8, 9]
    assert decided(Archive(clean + others), 2, suspects=0) == [8, 9]
    assert decided(Archive(clean + others), 2, suspects=9) == [3, 4, 5, 6, 7, 8, 9]


def test_untested_ones_are_young_for_a_day() -> None:
    young = stored(20, status="untested", created=NOW - 23 * HOUR)
    old = stored(21, status="untested", created=NOW - 25 * HOUR)
    assert decided(Archive((*TEN, young, old)), 1, suspects=0) == [9, 20]


def test_what_is_not_understood_stays_and_is_no_clean_one() -> None:
    odd = stored(9, unknown="no manifest.json there")
    assert decided(Archive((*TEN[:9], odd)), 1) == [8, 9]


def test_without_a_clean_one_nothing_goes() -> None:
    archive = Archive(tuple(replace(one, status="suspect") for one in TEN))
    found = plan(archive, Rule(1, suspects=0), NOW)
    assert not found.goes
    assert {row.stays for row in found.rows} == {NO_CLEAN}


def test_an_obstacle_keeps_everything() -> None:
    found = plan(Archive(TEN, obstacles=("pins.json cannot be read",)), Rule(1), NOW)
    assert not found.goes
    assert {row.stays for row in found.rows} == {"pins.json cannot be read"}


def test_the_bracket_of_an_open_incident_and_all_evidence() -> None:
    suspect = [stored(step, status="suspect") for step in (2, 3, 8, 9, 10)]
    clean = [stored(step) for step in (0, 1, 4, 5, 6, 7)]
    archive = Archive((*clean, *suspect), incidents=(OpenIncident(6, 9, False, 1),))
    # 5 is the last clean one before; 7 was clean after it; of those before, the count
    assert decided(archive, 1, suspects=0) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert decided(replace(archive, incidents=()), 1, suspects=0) == [7]


def test_the_incident_counts_the_guards_steps() -> None:
    shifted = tuple(stored(step, trace_step=step + 100) for step in range(10))
    archive = Archive(shifted, incidents=(OpenIncident(106, 106, True, 1),))
    assert decided(archive, 1) == [4, 5, 6, 7, 8, 9]


def test_a_statistics_incident_ends_with_fifty_quiet_steps_of_a_later_attempt() -> None:
    quiet = OpenIncident(3, 5, False, 1)

    def at(step: int, **changes: object) -> list[int]:
        changed = {"attempt": 2, **changes}
        return decided(Archive((*TEN, stored(step, **changed)), incidents=(quiet,)), 1)

    assert at(55) == [55]
    assert at(54) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 54]
    assert len(at(55, attempt=1)) == 10
    assert len(at(55, status="suspect")) == 10
    proven = Archive((*TEN, stored(99, attempt=2)), incidents=(OpenIncident(3, 5, True, 1),))
    assert len(decided(proven, 1)) == 10


def test_an_open_search_holds_its_bracket() -> None:
    archive = Archive(TEN, spans=(Span(3, 6, "the search 0001 is open"),))
    assert decided(archive, 2) == [3, 4, 5, 6, 8, 9]


def test_folders_of_one_step_stay_or_go_together() -> None:
    twice = [replace(one, name=f"{one.name}-a1") for one in TEN]
    found = plan(Archive((*TEN, *twice)), Rule(3, "keep-last"), NOW)
    assert steps(found) == [7, 7, 8, 8, 9, 9]
    pinned = Archive((*TEN, *twice), pins=frozenset({"step=000001-a1"}))
    assert decided(pinned, 1) == [1, 1, 9, 9]


def test_a_clock_that_was_put_back() -> None:
    late = stored(4, created=99 * HOUR)
    archive = Archive((*TEN[:4], late, *TEN[5:]))
    for policy in NAMES:
        kept = decided(archive, 3, policy)
        assert len(kept) == 3
        assert 9 in kept


STATUS = st.sampled_from(["clean", "clean", "clean", "suspect", "corrupt", "untested"])
ARCHIVES = st.builds(
    lambda rows, latest, pins, incidents, spans: Archive(
        tuple(
            stored(
                step, status=status, doubted=flag == 1, superseded=flag == 2,
                unknown="damaged" if flag == 3 else "",
            )
            for step, (status, flag) in rows.items()
        ),
        f"step={latest:06d}",
        frozenset(f"step={pin:06d}" for pin in pins),
        tuple(incidents),
        tuple(Span(first, first + wide, "searched") for first, wide in spans),
    ),
    st.dictionaries(st.integers(0, 60), st.tuples(STATUS, st.integers(0, 9)), max_size=30),
    st.integers(0, 60),
    st.sets(st.integers(0, 60), max_size=3),
    st.lists(
        st.builds(OpenIncident, st.integers(0, 60), st.integers(0, 60), st.booleans(), st.just(1)),
        max_size=1,
    ),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=1),
)  # fmt: skip
RULES = st.builds(
    Rule, st.integers(1, 8), st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from([1.0, 50.0])
)


@given(archive=ARCHIVES, rule=RULES)
def test_what_must_stay_stays(archive: Archive, rule: Rule) -> None:
    found = plan(archive, rule, NOW)
    gone = set(found.goes)
    good = [one for one in archive.stored if one.good]
    newest = max(good, key=lambda one: one.step, default=None)
    assert newest is None or newest.name not in gone
    assert not gone & (archive.pins | {archive.latest})
    assert not {one.name for one in archive.stored if one.unknown} & gone
    for span in archive.spans:
        assert not {s.name for s in archive.stored if span.first <= s.step <= span.last} & gone
    for incident in archive.incidents:
        before = [one.step for one in good if one.step < incident.opened]
        first = max(before, default=-1)
        assert not {one.name for one in archive.stored if one.step >= first} & gone
        assert not {one.name for one in archive.stored if not one.good} & gone
    if not good:
        assert not gone
    free = [row for row in found.rows if row.stored.good and row.stays == rule.policy]
    assert len(free) <= rule.count


@given(archive=ARCHIVES, rule=RULES, done=st.integers(0, 30))
def test_killed_on_the_way_it_comes_to_the_same_end(
    archive: Archive, rule: Rule, done: int
) -> None:
    first = plan(archive, rule, NOW)
    fixed = replace(rule, spacing=first.spacing)
    kept = tuple(one for one in archive.stored if one.name not in first.goes[:done])
    again = plan(replace(archive, stored=kept), fixed, NOW)
    assert again.goes == first.goes[done:]
    left = tuple(one for one in archive.stored if one.name not in first.goes)
    assert plan(replace(archive, stored=left), fixed, NOW).goes == ()


@pytest.mark.parametrize("policy", NAMES)
def test_the_plan_says_what_it_costs(policy: str) -> None:
    found = plan(Archive(TEN), Rule(4, policy), NOW)
    assert found.freed == 60
    assert found.spacing == (pytest.approx(1 / 24), 1)
    assert 0 <= found.excess < 1
    assert 0 < found.uncovered < 1
