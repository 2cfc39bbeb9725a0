"""Which files are folded with which: windows, tiers, and what must never be folded."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.store.contents import Part
from sdc_guard.store.sealing_plan import NEIGHBOURS, ROWS_WORTH_A_SEAL, SEGMENT, Piece, plan

MANY = ROWS_WORTH_A_SEAL  # rows of a segment that is worth a seal by itself


def piece(first: int, last: int, step: int, rows: int, tier: int = SEGMENT) -> Piece:
    name = f"{first}-{last}." + ("parquet" if tier == SEGMENT else "duckdb")
    part = Part("w", 1, first, last, last + 1 - first, rows, 0, step, step, step, step, 0)
    return Piece(first, last, (Path(name),), (part,), tier)


def segments(steps: list[int], rows: int = 1) -> list[Piece]:
    return [piece(number, number, step, rows) for number, step in enumerate(steps)]


def spans(made: list[Piece]) -> list[tuple[int, int, int]]:
    return [(item.first, item.last, item.tier) for item in made]


def test_a_window_with_many_rows_is_a_seal() -> None:
    steps = [0, 500, 999, 1000, 1500, 2000]
    assert spans(plan(segments(steps, MANY))) == [(0, 2, 0), (3, 4, 0)]
    assert spans(plan(segments([*steps, 2500], MANY))) == [(0, 2, 0), (3, 4, 0), (5, 6, 0)]


def test_windows_with_few_rows_share_a_seal() -> None:
    assert spans(plan(segments([0, 1000, 2000, 3000]))) == [(0, 3, 0)]
    # a seal is closed at the edge of the window that made it large enough
    steps = [0, 400, 1000, 1400, 2000, 2400, 3000, 3400]
    assert spans(plan(segments(steps, MANY // 3))) == [(0, 3, 0), (4, 7, 0)]


def test_a_segment_over_an_edge_belongs_to_the_window_of_its_first_step() -> None:
    assert spans(plan(segments([980, 999, 1019, 1039], MANY))) == [(0, 1, 0), (2, 3, 0)]


def test_small_seals_of_a_window_become_one_when_the_window_is_over() -> None:
    parts = [piece(0, 3, 0, 50, 0), piece(4, 7, 300, 50, 0), piece(8, 9, 900, 50, 0)]
    assert plan(parts) == []
    newer = [piece(10, 10, 1000, 50), piece(11, 11, 1020, 50)]
    assert spans(plan([*parts, *newer])) == [(0, 9, 0), (10, 11, 0)]


def test_sixteen_neighbours_become_one_of_the_next_tier() -> None:
    seals = [piece(n, n, 1000 * n, MANY, 0) for n in range(2 * NEIGHBOURS + 3)]
    assert spans(plan(seals)) == [(0, 15, 1), (16, 31, 1)]
    assert plan(seals[: NEIGHBOURS - 1]) == []
    tiers = [piece(16 * n, 16 * n + 15, 16_000 * n, 2000, 1) for n in range(NEIGHBOURS)]
    assert spans(plan(tiers)) == [(0, 255, 2)]


def test_segments_of_many_windows_are_written_once() -> None:
    made = plan(segments([1000 * n for n in range(256)], MANY), at_least=1, rows_per_seal=10**9)
    assert spans(made) == [(0, 255, 2)]
    assert len(made[0].files) == 256


def test_a_seal_is_not_added_to_beyond_its_bound() -> None:
    seals = [piece(n, n, 1000 * n, 40, 0) for n in range(8)]
    assert spans(plan(seals, rows_per_seal=130)) == [(0, 2, 1), (3, 5, 1)]


def test_nothing_is_folded_over_a_hole_or_a_barrier() -> None:
    pieces = segments([0, 1, 2, 3, 4, 5, 6])
    del pieces[2]
    pieces[4] = Piece(5, 5, (Path("bad"),), barrier=True)
    assert spans(plan(pieces, at_least=1)) == [(0, 1, 0), (3, 4, 0), (6, 6, 0)]
    assert spans(plan(pieces, at_least=2)) == [(0, 1, 0), (3, 4, 0)]


def test_steps_that_run_backwards_begin_another_window() -> None:
    assert spans(plan(segments([0, 1000, 0, 1000, 1500], MANY))) == [
        (0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 4, 0),
    ]  # fmt: skip


@given(
    steps=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60),
    rows=st.sampled_from([0, 1, 70_000, MANY, 10**7]),
    missing=st.sets(st.integers(0, 59), max_size=4),
    at_least=st.integers(1, 3),
)
def test_every_file_is_folded_once_at_most_and_in_its_order(
    steps: list[int], rows: int, missing: set[int], at_least: int
) -> None:
    pieces = [p for p in segments(steps, rows) if p.first not in missing]
    made = plan(pieces, at_least=at_least)
    files = [file for item in made for file in item.files]
    assert len(set(files)) == len(files)
    for item in made:
        inside = [p for p in pieces if item.first <= p.first <= item.last]
        assert [p.first for p in inside] == list(range(item.first, item.last + 1))
        assert item.files == tuple(p.files[0] for p in inside)
        assert item.rows == sum(p.rows for p in inside)


@given(flushes=st.lists(st.integers(1, 200), min_size=1, max_size=20), rows=st.integers(1, 10**6))
def test_the_files_stay_few(flushes: list[int], rows: int) -> None:
    """However often it is sealed: fewer than 16 of a tier, but for those at their bound."""
    pieces: list[Piece] = []
    number = 0
    for count in flushes:
        for _ in range(count):
            pieces.append(piece(number, number, 20 * number, rows))
            number += 1
        for made in plan(pieces, at_least=1):
            left = [p for p in pieces if p.last < made.first or p.first > made.last]
            name = (Path(f"{made.first}-{made.last}.duckdb"),)
            whole = Piece(made.first, made.last, name, made.parts, made.tier)
            pieces = sorted([*left, whole], key=lambda p: p.first)
        assert sum(p.rows for p in pieces) == number * rows
    for tier in {p.tier for p in pieces}:
        own = [p.rows for p in pieces if p.tier == tier]
        full = sum(own) // 10_000_000  # two neighbours at their bound have more than that each
        assert len(own) < NEIGHBOURS + 2 * full + 2
