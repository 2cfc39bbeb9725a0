"""Sessions of a run in every state, written as the commands write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forensics.journal import Session
from forensics.reporting.facts import Judged
from forensics.result import Result
from forensics.search.asked import Asked
from forensics.sessions.home import Home
from forensics.sessions.state import State, start_event

BRACKET: dict[str, Any] = Result(
    "run", 20, 40, exact=True, proven=True, evidence=("param w changed between 26 and 27",)
).as_dict()
LOCATED: dict[str, Any] = Result(
    "verify", 26, 27, exact=True, proven=True, kind="state at rest", verdict="intermittent", rank=0
).as_dict()


def judged(*said: tuple[int, str], by: str = "trace") -> list[Judged]:
    return [Judged(step, verdict, "because", by, 1e9, 0.5) for step, verdict in said]


def search(run: Path, said: Sequence[tuple[int, str]], by: str | None = "trace") -> Session:
    """A search that judged these; by a user if None."""
    session = Session.new(run)
    judge = None if by is None else (by,)
    session.note(**start_event(State(str(run), Asked(), judge=judge, began=1e9)))
    for step, verdict in said:
        session.note(
            "probe", step=step, checkpoint=f"archive/step={step:06d}", by=by or "user",
            verdict=verdict, reason=f"said of {step}", seconds=0.5, at=1e9,
            mark={"files": 2, "bytes": 10_000_000, "stat": "0", "content": ""},
        )  # fmt: skip
    Home.of(run, None).open(session)
    return session


def verification(run: Path, *replays: tuple[str, int, int, bool]) -> Session:
    """A verification with these replays: name, start, last step, whether it ended."""
    session = Session.new(run)
    session.note("verify", inputs={})
    for name, start, until, ended in replays:
        session.note("replay", name=name, start=start, until=until)
        folder = session.folder / name
        folder.mkdir()
        (folder / "replay.json").write_text(json.dumps({"ended": ended, "inputs": {}}))
        (folder / "output.log").write_text("step 21\nstep 22 loss 1.5\n")
    return session


def answered(session: Session, result: dict[str, Any], run: Path) -> Session:
    session.finish(result, at=1e9)
    Home.of(run, None).close()
    return session
