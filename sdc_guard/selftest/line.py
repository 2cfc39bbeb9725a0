"""A line of the self-test: one thing that is tried, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ..errors import SdcGuardError

Verdict = Literal["PASS", "FAIL", "INCOMPLETE"]


@dataclass(frozen=True)
class Outcome:
    """What came of a line.

    Attributes:
        verdict: PASS; FAIL for what is wrong; INCOMPLETE for what could not be tried, or says
            nothing.
        reason: one sentence.
        detail: what else is known; JSON values only.
        table: rows of text to print below.
    """

    verdict: Verdict
    reason: str
    detail: dict[str, Any] = field(default_factory=dict)
    table: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line as it is printed.

    Attributes:
        section: lines that belong together.
        name: what is tried.
        outcome: what came of it.
        seconds: that it took.
    """

    section: str
    name: str
    outcome: Outcome
    seconds: float = 0.0

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "section": self.section,
            "name": self.name,
            "verdict": self.outcome.verdict,
            "reason": self.outcome.reason,
            "seconds": round(self.seconds, 3),
            "detail": self.outcome.detail,
        }


@dataclass(frozen=True)
class Bench:
    """What the lines work with.

    Attributes:
        folder: an empty one that may be filled.
        devices: that are tried, the CPU first.
        run: whose recorded answers are compared with, or None.
    """

    folder: Path
    devices: tuple[torch.device, ...]
    run: Path | None = None

    def room(self, name: str) -> Path:
        """A new folder inside."""
        return self.folder / f"{len(list(self.folder.iterdir())):03d}-{name.replace(' ', '-')}"


Try = Callable[[Bench], Outcome]


@dataclass(frozen=True)
class Trial:
    """A line before it is tried."""

    section: str
    name: str
    attempt: Try


def tried(trials: Iterable[Trial], bench: Bench, tell: Callable[[Line], None]) -> list[Line]:
    """Try each; `tell` gets a line as soon as it is known."""
    lines = []
    for trial in trials:
        started = time.perf_counter()
        outcome = _outcome(trial.attempt, bench)
        line = Line(trial.section, trial.name, outcome, time.perf_counter() - started)
        lines.append(line)
        tell(line)
    return lines


def _outcome(attempt: Try, bench: Bench) -> Outcome:
    try:
        return attempt(bench)
    except SdcGuardError as error:
        return Outcome("INCOMPLETE", f"could not be tried: {error}")
    except Exception as error:  # noqa: BLE001 - because a line that ends early must not end the others
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Outcome("INCOMPLETE", f"could not be tried: {reason}")


def exit_code(lines: Iterable[Line]) -> int:
    """0 if all passed, 1 if one failed, 3 if some are incomplete and none failed."""
    verdicts = {line.outcome.verdict for line in lines}
    if "FAIL" in verdicts:
        return 1
    return 3 if "INCOMPLETE" in verdicts else 0
