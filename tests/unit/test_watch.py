"""Watching: what is told of a run is what its tables hold, and damage stays where it is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from traces import make_run, step, write

from sdc_guard import RunReader
from sdc_guard.store.run_file import Attempt, RunFile
from sdc_guard.store.segments import rank_folder, segment_path
from sdc_guard.watch import follow
from sdc_guard.watch.command import exit_code
from sdc_guard.watch.follow import Following
from sdc_guard.watch.show import COLUMNS, duration, news, plain_table, rich_table, urgent_first
from sdc_guard.watch.status import RunStatus, aged, status_of

T0 = 1_000_000.0


def steps(first: int, last: int, seconds: float = 0.5, **columns: Any) -> list[Any]:
    return [
        step(n, **{"time": T0 + n * seconds, "step_seconds": seconds, "loss": 3.0 * n, **columns})
        for n in range(first, last + 1)
    ]


def alert(number: int, detector: str = "norm", severity: str = "suspect", **columns: Any) -> Any:
    detail = json.dumps({"text": f"seen at {number}"})
    kind = {"detector": detector, "severity": severity, "layer": 1, "detail": detail}
    return "alerts", {"step": number, "score": 2.0, "threshold": 1.0, **kind, **columns}


def incident(number: int, at: int, closed: int | None = None, **columns: Any) -> Any:
    return "incidents", {
        "step": at, "incident": number, "opened": 2, "closed": closed, "evidence": "{}", **columns
    }  # fmt: skip


def end(at: int, **columns: Any) -> Any:
    return "events", {"step": at, "kind": "end", "detail": "{}", **columns}


def status(run: Path, now: float = T0) -> RunStatus:
    with RunReader(run) as reader:
        return status_of(reader, now)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Following]:
    with closing(Following([tmp_path])) as following:
        yield following


def test_a_run_that_records(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [*steps(0, 9), alert(2), alert(2), alert(4, "carried_digest", "proven")])
    found = status(run, T0 + 5)
    assert found == RunStatus(
        run=str(run),
        state="recording",
        newest=T0 + 4.5,
        last_step=9,
        steps_per_second=2.0,
        loss=27.0,
        alerts=(("carried_digest", "proven", 1), ("norm", "suspect", 2)),
        open_incidents=0,
        newest_alert="step 4: carried_digest in layer.1 (proven): seen at 4",
        missing_steps=0,
        ranks=1,
        world_size=1,
    )
    assert found.alert_count == 3


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Attempt(1, 0, T0))
    found = status(run, T0 + 30)
    assert (found.state, found.last_step, found.loss, found.ranks) == ("recording", None, None, 0)
    assert status(run, T0 + 61).state == "silent"


@pytest.mark.parametrize(("seconds", "patience"), [(0.5, 60.0), (100.0, 1000.0)])
def test_silence_is_measured_by_the_runs_own_pace(
    tmp_path: Path, seconds: float, patience: float
) -> None:
    run = make_run(tmp_path / "run")
    write(run, steps(0, 9, seconds))
    last = T0 + 9 * seconds
    assert status(run, last + patience).state == "recording"
    silent = status(run, last + patience + 1)
    assert silent.state == "silent"
    assert aged(silent, last).state == "recording"  # news would have made it so


def test_incidents_that_opened_and_closed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [*steps(0, 99), incident(1, 2), incident(1, 60, 60), incident(2, 70)])
    assert status(run).open_incidents == 1
    write(run, [incident(1, 5)], rank=1)
    assert status(run).open_incidents == 2
    write(run, [incident(2, 99, 99)])
    assert status(run).open_incidents == 1


def test_ranks_and_their_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    RunFile.read(run)
    replace(RunFile.read(run), world_size=2).write(run)
    write(run, [*steps(0, 9), end(10)])
    write(run, steps(0, 7), rank=1)
    found = status(run)
    assert (found.state, found.ranks, found.world_size) == ("recording", 2, 2)
    write(run, [end(8)], rank=1)
    assert status(run, T0 + 10**6).state == "ended"


def test_a_resume_goes_on_from_an_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Attempt(1, 0, T0), Attempt(2, 5, T0 + 100))
    write(run, [*steps(0, 9), alert(3), alert(8), incident(1, 8), end(10)])
    write(run, steps(5, 6, attempt=2, loss=1.25, time=T0 + 101))
    found = status(run, T0 + 102)
    assert (found.state, found.last_step, found.loss) == ("recording", 6, 1.25)
    assert found.alert_count == 1
    assert found.open_incidents == 0
    assert found.missing_steps == 0


def test_steps_without_a_row_are_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [*steps(3, 9), *steps(12, 15)])
    write(run, [*steps(4, 4), *steps(9, 9)], rank=1)
    assert status(run).missing_steps == 2 + 4


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, steps(0, 3, loss=math.nan))
    found = status(run)
    assert math.isnan(found.loss or 0.0)
    assert found.as_object()["loss"] == "NaN"
    assert "nan" in "".join(plain_table([found], T0))


def test_a_damaged_segment_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for first in (0, 10, 20):
        write(run, steps(first, first + 9))
    path = segment_path(rank_folder(run, "steps", 0), 1)
    path.write_bytes(path.read_bytes()[:-20])
    found = status(run)
    assert (found.damaged_files, found.missing_steps, found.last_step) == (1, 10, 29)
    assert "1 damaged" in plain_table([found], T0)[1]


def test_runs_come_go_and_are_damaged_without_touching_each_other(
    tmp_path: Path, watched: Following
) -> None:
    (waiting,) = watched.look(T0)
    assert (waiting.run, waiting.state) == (str(tmp_path), "waiting")
    write(make_run(tmp_path / "a"), steps(0, 3))
    write(make_run(tmp_path / "deep" / "b"), steps(0, 5))
    assert [(one.state, one.last_step) for one in watched.look(T0)] == [
        ("recording", 3), ("recording", 5),
    ]  # fmt: skip
    write(tmp_path / "a", steps(4, 4))
    text = (tmp_path / "deep/b/run.json").read_text(encoding="utf-8")
    (tmp_path / "deep/b/run.json").write_text(text[:40], encoding="utf-8")
    one, two = watched.look(T0)
    assert (one.state, one.last_step) == ("recording", 4)
    assert (two.state, two.last_step) == ("damaged", None)
    assert "run.json cannot be read" in two.problem
    (tmp_path / "deep/b/run.json").write_text(text, encoding="utf-8")
    assert watched.look(T0)[1].last_step == 5
    (tmp_path / "a" / "run.json").unlink()
    assert [Path(one.run).name for one in watched.look(T0)] == ["b"]


def test_the_replays_inside_of_a_run_are_no_runs_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "a" / "bisect" / "replay")
    make_run(tmp_path / "a" / "replay")
    with closing(Following([tmp_path, tmp_path / "a"])) as following:
        assert [one.run for one in following.look(T0)] == [str(tmp_path / "a")]


def test_a_run_is_read_again_only_after_news(
    tmp_path: Path, watched: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def counted(reader: RunReader, now: float) -> RunStatus:
        reads.append(now)
        return status_of(reader, now)

    monkeypatch.setattr(follow, "status_of", counted)
    run = make_run(tmp_path / "run")
    write(run, steps(0, 3))
    for now in (T0, T0 + 1, T0 + 100):
        (seen,) = watched.look(now)
    assert reads == [T0]
    assert seen.state == "silent"
    write(run, steps(4, 5))
    assert watched.look(T0 + 3)[0].last_step == 5
    assert reads == [T0, T0 + 3]


def test_a_reader_is_renewed_and_closed_after_the_end(
    tmp_path: Path, watched: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RunReader] = []

    class Counted(RunReader):
        def __init__(self, run: Path) -> None:
            made.append(self)
            super().__init__(run)

    monkeypatch.setattr(follow, "RunReader", Counted)
    monkeypatch.setattr(follow, "RENEW_AFTER", 3)
    run = make_run(tmp_path / "run")
    for number in range(7):
        write(run, steps(number, number))
        assert watched.look(T0)[0].last_step == number
    assert len(made) == 3
    write(run, [end(7)])
    assert watched.look(T0)[0].state == "ended"
    assert not [one for one in watched._followed.values() if one._reader is not None]


def test_what_needs_attention_comes_first() -> None:
    calm = RunStatus("/r/a", "recording")
    statuses = [
        RunStatus("/r/e", "ended"), calm, RunStatus("/r/s", "silent"),
        RunStatus("/r/x", "ended", open_incidents=1), RunStatus("/r/d", "damaged"),
    ]  # fmt: skip
    assert [one.run[-1] for one in urgent_first(statuses)] == ["x", "d", "s", "a", "e"]


def test_exit_codes() -> None:
    calm, ended = RunStatus("/a", "recording"), RunStatus("/b", "ended")
    absent, incident = RunStatus("/c", "waiting"), RunStatus("/d", "silent", open_incidents=2)
    assert exit_code([calm, ended]) == 0
    assert exit_code([calm, incident]) == 1
    assert exit_code([calm, absent]) == exit_code([RunStatus("/e", "damaged")]) == 2
    assert exit_code([absent, incident]) == 1


ODD = RunStatus(
    "/runs/[red]x\x1b[2J", "recording", newest=T0, last_step=12345, steps_per_second=3.14159,
    loss=0.1234567, alerts=(("norm", "suspect", 1200),), open_incidents=1, ranks=3, world_size=4,
    newest_alert="step 9: norm in a[bold]\x1b]0;title\x07\nb",
)  # fmt: skip


def test_tables_show_names_as_they_are_and_obey_none() -> None:
    from rich.console import Console

    plain = plain_table([ODD, RunStatus("/runs/y", "waiting", problem="no run")], T0)
    assert plain[0].split() == " ".join(COLUMNS).split()
    assert "12,345" in plain[1]
    assert "3/4" in plain[1]
    assert "3.14" in plain[1]
    console = Console(width=150, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(rich_table([ODD], T0))
    for text in (*plain, captured.get()):
        assert text.replace("\n", "").isprintable()
    for text in (plain[1], captured.get()):
        assert "[red]x" in text
        assert "a[bold]" in text


def test_a_log_tells_news_and_not_progress() -> None:
    later = replace(ODD, last_step=12346, loss=9.0, newest=T0 + 1)
    assert news(ODD, later, T0) is None
    first = news(None, ODD, T0)
    assert first is not None
    assert first.isprintable()
    assert "recording, step 12345, 1,200 alerts, 1 open incidents; step 9: norm" in first
    silent = news(ODD, replace(ODD, state="silent"), T0 + 600)
    assert silent is not None
    assert "silent for 10 min" in silent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
