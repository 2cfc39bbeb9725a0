"""Two traces compared: what is compared with what, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traces import LAYERS, digest, gradient, make_run, turning_steps, whole_steps, write

from forensics.answer import equal_result
from forensics.compare import Comparison, compare
from sdc_guard import RunReader
from sdc_guard.store.run_file import Attempt

FIRST, LAST = 5, 12
BUDGET = Attempt(1, 0, 0.0, digest_budget=0.2)


def measured(first: int = FIRST, last: int = LAST, **columns: Any) -> list[Any]:
    return [
        gradient(s, n, float(s + n), **columns) for s in range(first, last + 1) for n in range(2)
    ]


def replay_of(tmp_path: Path) -> Path:
    """Steps 5 to 12 again, every tensor digested."""
    run = make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0))
    write(run, [*whole_steps(FIRST, LAST), *measured()])
    return run


def compared(original: Path, replay: Path) -> Comparison:
    with RunReader(original) as one, RunReader(replay) as two:
        return compare(one, two, FIRST, LAST)


def changed(rows: list[Any], table: str, columns: dict[str, Any], **to: Any) -> list[Any]:
    """The rows with those that fit the columns changed; at least one."""

    def fits(row: Any) -> bool:
        return row[0] == table and columns.items() <= row[1].items()

    assert any(map(fits, rows))
    return [(t, {**c, **to}) if fits((t, c)) else (t, c) for t, c in rows]


def test_equal_whole_traces(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [*whole_steps(0, 20), *measured(0, 20)])
    found = compared(run, replay_of(tmp_path))
    assert (found.steps, found.tensors, found.missing) == (8, LAYERS, ())
    assert (found.difference, found.not_restored) == (None, ())
    assert (found.compared, found.possible) == (2 * LAYERS * 8, 2 * LAYERS * 8)
    assert found.watched == 1
    assert found.known_up_to(LAST + 1) == LAST


def test_what_the_original_did_not_digest_by_plan_is_not_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", BUDGET)
    write(run, [*turning_steps(0, 20, whole=[4, 9]), *measured(0, 20)])
    found = compared(run, replay_of(tmp_path))
    assert (found.steps, found.missing, found.difference) == (8, (), None)
    # one tensor before each step, one after each, and three more after step 9
    assert (found.compared, found.possible) == (8 + 8 + 3, 2 * LAYERS * 8)
    assert found.whole_after == {9}
    assert found.whole_before == frozenset()
    assert [found.known_up_to(step) for step in (5, 9, 10, 13)] == [4, 4, 9, 9]


@pytest.mark.parametrize("lost", ["steps", "layers"])
def test_what_a_budget_does_not_spare_is_missing(tmp_path: Path, lost: str) -> None:
    run = make_run(tmp_path / "run", BUDGET)
    rows = [*turning_steps(0, 20), *measured(0, 20)]
    write(run, [row for row in rows if (row[0], row[1]["step"]) != (lost, 7)])
    assert compared(run, replay_of(tmp_path)).missing == (7,)


def test_a_lost_digest_is_missing_where_all_were_due(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [*whole_steps(0, 20), *measured(0, 20)]
    gone = {"step": 7, "phase": "after", "layer": 2}
    write(run, [row for row in rows if not gone.items() <= row[1].items()])
    found = compared(run, replay_of(tmp_path))
    assert found.missing == (7,)
    assert found.known_up_to(8) == 6
    assert found.known_up_to(9) == 8


def test_the_first_difference_is_found_by_the_gradients_of_every_step(tmp_path: Path) -> None:
    rows = [*turning_steps(0, 20), *measured(0, 20)]
    rows = changed(rows, "layers", {"step": 8, "layer": 1}, norm=9.000000000000002)
    rows = changed(rows, "steps", {"step": 10}, loss=0.5)
    run = make_run(tmp_path / "run", BUDGET)
    write(run, rows)
    difference = compared(run, replay_of(tmp_path)).difference
    assert difference is not None
    assert (difference.step, difference.gradients) == (8, ("layer.1",))
    assert (difference.loss, difference.before, difference.after) == (False, (), ())
    assert difference.ranks == (0,)


def test_gradients_are_compared_within_their_scope(tmp_path: Path) -> None:
    def reduced(first: int, last: int) -> list[Any]:
        return changed(measured(first, last, scope="reduced"), "layers", {}, norm=0.25)

    run = make_run(tmp_path / "run")
    write(run, [*whole_steps(0, 20), *measured(0, 20), *reduced(0, 20)])
    replay = replay_of(tmp_path)
    write(replay, reduced(FIRST, LAST))
    assert compared(run, replay).difference is None


def test_a_gradient_that_one_rank_computed_wrong_names_the_rank(tmp_path: Path) -> None:
    runs = []
    for name, wrong in (("run", 7.5), ("replay", 7.0)):
        run = make_run(tmp_path / name, Attempt(1, FIRST, 0.0))
        for rank, local in enumerate((6.0, wrong)):
            rows = [gradient(8, 0, local), gradient(8, 0, 6.0 + wrong, scope="reduced")]
            write(run, [*whole_steps(FIRST, LAST), *rows], rank=rank)
        runs.append(run)
    difference = compared(*runs).difference
    assert difference is not None
    assert (difference.step, difference.gradients, difference.ranks) == (8, ("layer.0",), (1,))


def test_state_that_the_resume_did_not_restore(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", BUDGET)
    write(run, [*turning_steps(0, 20, whole=[4]), *measured(0, 20)])
    replay = make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0))
    rows = changed(whole_steps(FIRST, LAST), "digests", {"step": 5, "phase": "before"}, h=-3)
    write(replay, [*rows, *measured()])
    found = compared(run, replay)
    assert [item.name for item in found.not_restored] == [f"layer.{n}" for n in range(4)]
    write(run, [("events", {"step": 5, "kind": "refresh", "detail": ""})])
    assert compared(run, replay).not_restored == ()


def test_layers_are_matched_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=["layer.3", "layer.2", "layer.1", "layer.0"])
    turned = [
        (table, {**columns, "layer": 3 - columns["layer"]} if "layer" in columns else columns)
        for table, columns in [*whole_steps(0, 20), *measured(0, 20)]
    ]
    write(run, changed(turned, "digests", {"step": 6, "phase": "after", "layer": 0}, s2=5))
    difference = compared(run, replay_of(tmp_path)).difference
    assert difference is not None
    (tensor,) = difference.after
    assert (difference.step, tensor.layer, tensor.name) == (6, 0, "layer.3")


@pytest.mark.parametrize(
    ("columns", "what"), [({"loss_scale": 512.0}, "scale"), ({"skipped": True}, "skipped")]
)
def test_another_loss_scale_and_a_skip(tmp_path: Path, columns: dict[str, Any], what: str) -> None:
    rows = changed([*whole_steps(0, 20), *measured(0, 20)], "steps", {}, loss_scale=1024.0)
    run = make_run(tmp_path / "run")
    write(run, changed(rows, "steps", {"step": 6}, **columns))
    replay = make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0))
    theirs = [*whole_steps(FIRST, LAST), *measured()]
    write(replay, changed(theirs, "steps", {}, loss_scale=1024.0))
    difference = compared(run, replay).difference
    assert difference is not None
    assert (difference.step, difference.scale, difference.skipped) == (
        6,
        what == "scale",
        what == "skipped",
    )


def test_a_loss_scale_that_one_of_them_did_not_record_is_no_difference(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [*whole_steps(0, 20), *measured(0, 20)])
    replay = make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0))
    theirs = [*whole_steps(FIRST, LAST), *measured()]
    write(replay, changed(theirs, "steps", {}, loss_scale=1024.0))
    assert compared(run, replay).difference is None


def test_a_replay_with_a_budget_of_its_own_shows_nothing_whole(tmp_path: Path) -> None:
    replay = make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0, digest_budget=0.2))
    write(replay, [*turning_steps(FIRST, LAST), *measured()])
    for name, attempt, steps in (
        ("whole", Attempt(1, 0, 0.0), whole_steps(0, 20)),
        ("part", BUDGET, turning_steps(0, 20)),
    ):
        run = make_run(tmp_path / name, attempt)
        write(run, [*steps, *measured(0, 20)])
        found = compared(run, replay)
        assert (found.whole_after, found.whole_before) == (frozenset(), frozenset())
        assert found.known_up_to(LAST + 1) == FIRST - 1


@pytest.mark.parametrize("both", [True, False])
def test_what_was_compared_is_said_and_buffers_only_where_both_digested_them(
    tmp_path: Path, both: bool
) -> None:
    """A buffer that only the replay digests is no buffer that was compared."""
    held = [digest(n, "after", 3, 7, kind="buffer") for n in range(FIRST, LAST + 1)]
    run, replay = make_run(tmp_path / "run"), make_run(tmp_path / "replay", Attempt(1, FIRST, 0.0))
    write(run, [*whole_steps(0, 20), *measured(0, 20), *(held if both else [])])
    write(replay, [*whole_steps(FIRST, LAST), *measured(), *held])
    found = compared(run, replay)
    assert found.kinds == ({"param", "buffer"} if both else {"param"})
    evidence = equal_result(found).evidence[-1]
    if both:
        assert evidence == "compared: parameters, and the model's buffers"
    else:
        assert evidence.startswith("compared: parameters; not the model's buffers")
