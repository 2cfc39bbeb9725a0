"""The command `sdc-guard selftest`: which lines there are, and how they are told."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ..errors import RunNotFound
from ..signals.device_names import device_id, word_for
from . import adam, between_ranks, carried, comparison, copies, gradients, known, quiet, replay
from .line import Bench, Line, Outcome, Trial, exit_code, tried

Say = Callable[[str], None]
CLAIM: Final = "a fault was seen where one was made; that a device is sound cannot be proven"


@dataclass(frozen=True)
class Report:
    """What came of all lines.

    Attributes:
        lines: in their order.
        notes: what is not tried here, and why.
        seconds: that it took.
    """

    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """See `line.exit_code`."""
        return exit_code(self.lines)

    def as_object(self) -> dict[str, Any]:
        """For --json."""
        return {
            "verdict": {0: "PASS", 1: "FAIL", 3: "INCOMPLETE"}[self.exit_code],
            "lines": [line.as_object() for line in self.lines],
            "notes": list(self.notes),
            "machine": machine(),
            "seconds": round(self.seconds, 3),
        }


def trials_of(bench: Bench) -> list[Trial]:
    """All lines of one process. A new one is one more function in one of these modules."""
    return [
        *carried.TRIALS,
        *gradients.TRIALS,
        *adam.TRIALS,
        *comparison.TRIALS,
        *quiet.TRIALS,
        *replay.trials_of(bench),
        *copies.trials_of(bench),
        *known.trials_of(bench),
    ]


def selftest(run: Path | None, say: Say) -> Report | None:
    """Try everything that can be tried here.

    Args:
        run: whose recorded answers are compared with, or None.
        say: called with each line of text as soon as it is known.

    Returns:
        the report; None on other ranks than 0, which say nothing.

    Raises:
        RunNotFound: no such run.
    """
    if run is not None and not run.is_dir():
        raise RunNotFound("no such folder", where=str(run), next_step="give a run's folder")
    started = time.perf_counter()
    world, rank = between_ranks.world_size(), int(os.environ.get("RANK", 0))
    found, why, missing = copies.devices_here()
    if world > 1:
        found = between_ranks.of_this_rank(found)
    talk = say if rank == 0 else _silent
    talk(f"SDC Guard's self-test on {machine()['text']}")
    with tempfile.TemporaryDirectory(prefix="sdc-guard-selftest-") as folder:
        bench = Bench(Path(folder), (torch.device("cpu"), *found), run)
        trials = trials_of(bench)
        if missing:
            trials.append(Trial(copies.SECTION, "with devices", lambda _: _not_there(why)))
        telling = Telling(talk)
        # among ranks the others' part of a line is not known until all have come to its end
        lines = tried(trials, bench, telling.line if world == 1 else _unheard)
        if world > 1:
            lines = _with_other_ranks(lines, bench, telling)
    notes = (why,) if why and not missing else ()
    report = Report(tuple(lines), notes, time.perf_counter() - started)
    for line in last_words(report):
        talk(line)
    return report if rank == 0 else None


def _with_other_ranks(lines: list[Line], bench: Bench, telling: Telling) -> list[Line]:
    try:
        between_ranks.join(bench.devices)
        together = between_ranks.of_all_ranks(lines)
    except Exception as error:  # noqa: BLE001 - because other ranks may be missing in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        alone = Outcome("INCOMPLETE", f"the other ranks could not be reached: {reason}")
        together = [*lines, Line(between_ranks.SECTION, "joining", alone)]
        for line in together:
            telling.line(line)
        return together
    for line in together:
        telling.line(line)
    together += tried(between_ranks.trials_of(bench), bench, telling.line)
    between_ranks.leave()
    return together


def _not_there(why: str) -> Outcome:
    return Outcome("INCOMPLETE", why)


class Telling:
    """Tells lines as text, with a heading for each section."""

    def __init__(self, say: Say) -> None:
        self._say, self._section = say, ""

    def line(self, line: Line) -> None:
        """Tell a line."""
        if line.section != self._section:
            self._section = line.section
            self._say(f"\n{line.section}")
        outcome = line.outcome
        self._say(f"  {outcome.verdict:<10}  {line.name:<36} {outcome.reason}")
        for row in outcome.table:
            self._say(f"{'':14}{row}")


def last_words(report: Report) -> list[str]:
    """The end of the text."""
    counts = {
        verdict: sum(line.outcome.verdict == verdict for line in report.lines)
        for verdict in ("PASS", "FAIL", "INCOMPLETE")
    }
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    notes = [f"not here: {note}" for note in report.notes]
    return ["", *notes, f"{told} in {report.seconds:.0f} s; {CLAIM}"]


def machine() -> dict[str, Any]:
    """This machine, for people and programs."""
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    text = (
        f"{platform.node()}: torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{', '.join(map(word_for, devices)) or 'no device'}"
    )
    return {
        "text": text,
        "host": platform.node(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "devices": [{"name": word_for(one), "id": device_id(one)} for one in devices],
    }


def _silent(_: str) -> None:
    return None


def _unheard(_: Line) -> None:
    return None
