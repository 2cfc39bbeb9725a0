"""The parts of the lake that need no DuckLake: names, numbers, and what is to be uploaded."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st

from sdc_guard.errors import LakeUnavailable, RunNotFound, UsageError
from sdc_guard.lake.identity import run_id
from sdc_guard.lake.location import Lake, is_lake, parse, without_password
from sdc_guard.lake.pending import Piece, batches, pending
from sdc_guard.lake.ranks import rank_numbers
from sdc_guard.lake.spans import Spans
from sdc_guard.lake.tables import turns
from sdc_guard.lake.telling import Telling
from sdc_guard.lake.uploader import Progress
from sdc_guard.lake.watch import watch
from sdc_guard.store import sealing
from sdc_guard.store.opening import open_run
from sdc_guard.store.reader import RunReader
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.segments import listing, rank_folder

POSTGRES = "postgres:dbname=sdc host=/tmp"


@pytest.mark.parametrize(
    ("location", "lake", "run"),
    [
        (f"ducklake:{POSTGRES}?data=/d&run=pre", Lake(POSTGRES, "/d"), "pre"),
        (f"ducklake:{POSTGRES}", Lake(POSTGRES), None),
        (f"ducklake:{POSTGRES}?run=a%26b%3Fc", Lake(POSTGRES), "a&b?c"),
        (f"ducklake:{POSTGRES}?data=s3://b/c", Lake(POSTGRES, "s3://b/c"), None),
        (
            "ducklake:postgres:postgresql://u@h/d?sslmode=require",
            Lake("postgres:postgresql://u@h/d?sslmode=require"),
            None,
        ),
        (
            "ducklake:postgres:postgresql://u@h/d?sslmode=require?run=x",
            Lake("postgres:postgresql://u@h/d?sslmode=require"),
            "x",
        ),
    ],
)
def test_locations(location: str, lake: Lake, run: str | None) -> None:
    assert is_lake(location)
    assert parse(location) == (lake, run)


def test_a_folder_of_the_lake_is_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lake.of(POSTGRES, "lake") == Lake(POSTGRES, str(tmp_path / "lake"))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("ducklake:", "no catalog named"),
        (f"ducklake:{POSTGRES}?run=a&runs=b", "no key runs"),
        ("runs/x", "not a lake"),
    ],
)
def test_locations_that_are_none(location: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(location)


@pytest.mark.parametrize(
    "text",
    [
        "dbname=x password=geheim host=y",
        "dbname=x password = 'ge heim' host=y",
        'at "dbname=x password=geheim"',
        "postgresql://user:geheim@host/db",
        "postgresql://host/db?password=geheim&sslmode=require",
    ],
)
def test_passwords_are_not_shown(text: str) -> None:
    shown = without_password(text)
    assert "***" in shown
    assert "heim" not in shown
    assert ("host" in text) == ("host" in shown)


def test_a_folder_is_opened_as_before(tmp_path: Path) -> None:
    run = traces.make_run(tmp_path / "run")
    assert not is_lake(run)
    with open_run(run) as reader:
        assert isinstance(reader, RunReader)
    with pytest.raises(RunNotFound):
        open_run(str(tmp_path / "none"))


def test_ranks() -> None:
    assert rank_numbers(None) is None
    assert rank_numbers("0-2,7, 9-9") == {0, 1, 2, 7, 9}
    for wrong in ("", "a", "3-1", "1-", "-1", "1,,2"):
        with pytest.raises(UsageError, match="no list of ranks"):
            rank_numbers(wrong)


def test_a_run_keeps_its_identity_and_another_of_its_name_has_its_own() -> None:
    run = RunFile("pretrain", 8, (), (Attempt(1, 0, 1700000000.25),))
    # printf 'pretrain\n1700000000.25' | sha256sum
    assert run_id(run) == "pretrain-6c8a2ef7"
    assert run_id(run.with_attempt(Attempt(2, 5, 1700000009.0))) == run_id(run)
    assert run_id(RunFile("pretrain", 8, (), (Attempt(1, 0, 1700000001.0),))) != run_id(run)


def test_ranks_of_a_node_take_turns_and_nodes_do_not_wait_for_each_other() -> None:
    nodes = [turns("run", set(range(first, first + 8))) for first in range(0, 256, 8)]
    assert all(len(tables) == 1 for tables in nodes)
    assert len({tables[0] for tables in nodes}) == 32
    assert turns("run", set(range(256))) == sorted(tables[0] for tables in nodes)


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
)


@given(spans, spans, st.integers(0, 70), st.integers(0, 20))
def test_spans_are_the_sets_of_their_numbers(
    first: list[tuple[int, int]], then: list[tuple[int, int]], start: int, length: int
) -> None:
    known = Spans(first)
    known.add(then)
    numbers = {n for a, b in [*first, *then] for n in range(a, b + 1)}
    asked = range(start, start + length + 1)
    assert {n for n in range(90) if n in known} == numbers
    gaps = known.missing(asked[0], asked[-1])
    missing = [n for a, b in gaps for n in range(a, b + 1)]
    assert missing == [n for n in asked if n not in numbers]
    assert all(b + 1 < c for (_, b), (c, _) in itertools.pairwise(gaps))
    inside = known.within(asked[0], asked[-1])
    assert {n for a, b in inside for n in range(a, b + 1)} & set(asked) == numbers & set(asked)


def kinds(found: list[Piece]) -> list[tuple[str, int, int]]:
    return [(piece.kind, piece.first, piece.last) for piece in found if piece.table == "steps"]


def test_a_seal_goes_whole_a_half_uploaded_one_by_its_segments_or_by_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = traces.make_run(tmp_path / "run")
    for number in range(3):
        traces.write(run, [traces.step(number)])
    stream = ("steps", 0)
    assert kinds(pending(run, None, {}, ())) == [("segment", n, n) for n in range(3)]
    seal_run(run)
    traces.write(run, [traces.step(3)])
    assert kinds(pending(run, None, {}, ())) == [("seal", 0, 2), ("segment", 3, 3)]
    one = {stream: Spans([(1, 1)])}
    assert kinds(pending(run, None, one, ())) == [("segment", n, n) for n in (0, 2, 3)]
    files = listing(rank_folder(run, "steps", 0))
    assert kinds(pending(run, None, one, [files.segments[0], files.segments[2]])) == [
        ("rest", 0, 2),
        ("segment", 3, 3),
    ]
    damaged = [files.seals[0, 2]]
    assert kinds(pending(run, None, {}, damaged)) == [("segment", n, n) for n in range(4)]
    monkeypatch.setattr(sealing, "GRACE_SECONDS", -1.0)
    seal_run(run)  # deletes what is folded
    assert kinds(pending(run, None, one, ())) == [("rest", 0, 2), ("segment", 3, 3)]
    assert kinds(pending(run, None, {stream: Spans([(0, 2)])}, ())) == [("segment", 3, 3)]
    assert kinds(pending(run, {1}, {}, ())) == []


def test_batches_are_bounded_in_number_and_in_bytes() -> None:
    pieces = [Piece("steps", 0, n, n, "segment", Path(str(n)), 10) for n in range(5)]
    large = Piece("steps", 0, 5, 9, "seal", Path("large"), 1000)
    grouped = [len(group) for group in batches([*pieces, large, *pieces], 3, 25)]
    assert grouped == [2, 2, 1, 1, 2, 2, 1]
    assert [len(group) for group in batches(pieces, 3, 1000)] == [3, 2]
    assert list(batches([], 3, 25)) == []


class Ended(Exception):
    """The test has seen enough."""


class Failing:
    """In the place of an uploader: each upload ends as told."""

    def __init__(self, ends: list[Progress | Exception]) -> None:
        self._ends = ends

    def upload(self) -> Progress:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def test_watching_waits_longer_and_tells_once() -> None:
    down = LakeUnavailable("down")
    found = Progress("run", commits=1, pieces=2, rows=3000)
    ends = [RunNotFound("none yet"), found, *[down] * 8, found, down, Ended()]
    waits: list[float] = []
    lines: list[str] = []
    telling = Telling(lines.append, lines.append)
    with pytest.raises(Ended):
        watch(Failing(ends), 2.0, telling.done, telling.trouble, waits.append)  # type: ignore[arg-type]
    assert waits == [2, 2, 4, 8, 16, 32, 60, 60, 60, 60, 2, 4]
    said = "run: 3,000 rows of 2 segments in 1 commits"
    trouble = "down; trying again"
    assert lines == ["none yet; waiting for it", said, trouble, said, trouble]


def test_a_damaged_file_is_told_once() -> None:
    lines: list[str] = []
    telling = Telling(lines.append, lines.append)
    for _ in range(2):
        telling.done(Progress("run", damaged={Path("seg"): "CRC mismatch"}))
    assert lines == ["damaged, not uploaded: seg (CRC mismatch)"]
