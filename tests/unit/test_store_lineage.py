"""Which attempt counts for which step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard import RunReader
from sdc_guard.errors import UsageError
from sdc_guard.store.lineage import lineage
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.writer import Health, Writer


def attempts(starts: list[int]) -> list[Attempt]:
    return [Attempt(number, start, 0.0) for number, start in enumerate(starts, 1)]


@given(
    starts=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    upto=st.none() | st.integers(1, 8),
)
def test_the_newest_attempt_that_ran_a_step_counts(starts: list[int], upto: int | None) -> None:
    started = attempts(starts)
    spans = lineage(started, upto)
    for step in range(16):
        counting = [a for a, first, end in spans if first <= step < end]
        considered = [a for a in started if upto is None or a.attempt <= upto]
        fitting = [a.attempt for a in considered if a.first_step <= step]
        assert counting == fitting[-1:]
    assert [first for _, first, _ in spans] == sorted({first for _, first, _ in spans})


def test_no_attempt_no_span() -> None:
    assert lineage([]) == []


@pytest.fixture
def resumed(empty_run: Path) -> Path:
    """Attempt 1: steps 0 to 9; attempt 2: 5 to 7; attempt 3: 7 to 8."""
    RunFile.read(empty_run).with_attempt(Attempt(2, 5, 1.0)).with_attempt(Attempt(3, 7, 2.0)).write(
        empty_run
    )
    writer = Writer(empty_run, 0, Health())
    for attempt, steps in ((1, range(10)), (2, range(5, 8)), (3, range(7, 9))):
        for step in steps:
            writer.append("steps", attempt=attempt, step=step)
    writer.close()
    return empty_run


def test_the_tables_hold_the_run_as_it_is_now(resumed: Path) -> None:
    with RunReader(resumed) as reader:
        found = reader.rows("SELECT step, attempt FROM steps ORDER BY step")
        assert found == [(s, 1) for s in range(5)] + [(5, 2), (6, 2), (7, 3), (8, 3)]
        assert reader.rows("SELECT count(*) FROM every.steps") == [(15,)]


def test_the_tables_as_they_were_during_an_attempt(resumed: Path) -> None:
    with RunReader(resumed, attempt=1) as reader:
        assert reader.rows("SELECT count(*), max(attempt) FROM steps") == [(10, 1)]
    with RunReader(resumed, attempt=2) as reader:
        found = reader.rows("SELECT step, attempt FROM steps ORDER BY step")
        assert found == [(s, 1) for s in range(5)] + [(5, 2), (6, 2), (7, 2)]


@pytest.mark.parametrize("attempt", [0, 4, -1])
def test_an_unknown_attempt(resumed: Path, attempt: int) -> None:
    with pytest.raises(UsageError, match=f"no attempt {attempt}") as caught:
        RunReader(resumed, attempt=attempt)
    assert "it has 1, 2, 3" in str(caught.value)


def test_a_reader_sees_a_resume_after_refresh(resumed: Path) -> None:
    with RunReader(resumed) as reader:
        RunFile.read(resumed).with_attempt(Attempt(4, 2, 3.0)).write(resumed)
        reader.refresh()
        assert reader.rows("SELECT step, attempt FROM steps ORDER BY step") == [(0, 1), (1, 1)]


def test_a_run_started_over_holds_the_new_start_alone(resumed: Path) -> None:
    RunFile.read(resumed).with_attempt(Attempt(4, 0, 3.0)).write(resumed)
    writer = Writer(resumed, 0, Health())
    writer.append("steps", attempt=4, step=[0, 1])
    writer.close()
    with RunReader(resumed) as reader:
        assert reader.rows("SELECT step, attempt FROM steps ORDER BY step") == [(0, 4), (1, 4)]


def test_the_last_step_of_all_is_seen(resumed: Path) -> None:
    writer = Writer(resumed, 0, Health())
    writer.append("steps", attempt=3, step=2**63 - 1)
    writer.close()
    with RunReader(resumed) as reader:
        assert reader.rows("SELECT max(step) FROM steps") == [(2**63 - 1,)]
