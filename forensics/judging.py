"""Carrying out a search: judges, journal, progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from sdc_guard.errors import CommandFailed, Interrupted, SdcGuardError

from .checkpoint import Checkpoint
from .executors.executor import Executor, WorkerLost
from .journal import Recorder
from .locations import still_there
from .oracles.judgement import Judgement, Oracle
from .progress import left_line
from .search import Found, Verdict
from .search.planner import Planner


@dataclass(frozen=True)
class Timed:
    """An oracle's answers with the seconds that they took; can be sent to other machines."""

    oracle: Oracle
    candidates: Sequence[Checkpoint]

    def __call__(self, place: int) -> tuple[Judgement, float]:
        start = time.monotonic()
        judgement = self.oracle.judge(self.candidates[place])
        still_there(self.candidates[place].path)
        return judgement, time.monotonic() - start


@dataclass
class Judging:
    """Judges what planners ask for. Every judging is in the journal as soon as it is done.

    Attributes:
        candidates: by step.
        oracles: by the planner's stage.
        session: keeps the journal; None when the answer is only needed on the way.
        tell: called with a line per probe, and with what is left.
        executor: of the judgings.
        known: judgements of a place that are there already, with the names of those who judged;
            each is told once where the place is asked for, and not judged again.
        judgements: one of each place, by the last oracle that was asked: a corrupt one before
            others.
        probes: every judging in its order: place, judgement, and name of the oracle.
    """

    candidates: Sequence[Checkpoint]
    oracles: Sequence[Oracle]
    session: Recorder | None
    tell: Callable[[str], None]
    executor: Executor
    known: dict[int, deque[tuple[Judgement, str]]] = field(default_factory=dict)
    judgements: dict[int, Judgement] = field(default_factory=dict)
    probes: list[tuple[int, Judgement, str]] = field(default_factory=list)
    _stage: int = 0
    _seconds: list[float] = field(default_factory=list)

    def go(self, planner: Planner) -> Found:
        """Carry out a search.

        Raises:
            Interrupted: by Ctrl-C; what was judged until then is in the journal.
            CommandFailed: a worker on another machine ended while it judged.
            SdcGuardError: what a judge raises.
        """
        try:
            while places := planner.ask(self.executor.jobs):
                try:
                    self._round(planner, places)
                except WorkerLost as lost:
                    raise self._lost(lost, places) from None
        except KeyboardInterrupt:
            raise self._interrupted(planner.found()) from None
        except SdcGuardError as error:
            if self.session is not None:
                self.session.stopped(error.what)
            raise
        return planner.found()

    def _round(self, planner: Planner, places: Sequence[int]) -> None:
        stage = planner.stage
        if stage != self._stage:  # what another oracle said counts no more
            self._stage = stage
            self.judgements.clear()
        left = []
        for place in places:
            if stage == 0 and self.known.get(place):
                known = self.known[place].popleft()
                self.recall(place, *known)
                planner.tell(place, known[0].verdict)
            else:
                left.append(place)
        if self.session is not None:
            for place in dict.fromkeys(left):
                self.session.judging(self.candidates[place])
        call = Timed(self.oracles[stage], self.candidates)
        with closing(self.executor.run(call, left)) as answers:  # ends the others on Ctrl-C here
            for place, (judgement, seconds) in answers:
                self._judged(place, judgement, seconds)
                planner.tell(place, judgement.verdict)
        jobs = self.executor.jobs
        if line := left_line(self._seconds, planner.remaining(jobs), jobs):
            self.tell(line)

    def recall(self, place: int, judgement: Judgement, by: str) -> None:
        """Take a judgement that was kept."""
        before = self.judgements.get(place)
        if before is None or before.verdict != "corrupt":
            self.judgements[place] = judgement
        self.probes.append((place, judgement, by))

    def _judged(self, place: int, judgement: Judgement, seconds: float) -> None:
        one = self.candidates[place]
        if self.session is not None:
            self.session.judged(one, judgement, seconds)
        self.recall(place, judgement, self.oracles[self._stage].name)
        self._seconds.append(seconds)
        saved = " (suspect when it was saved)" if one.status == "suspect" else ""
        self.tell(f"step {one.step}: {judgement.verdict}, {judgement.reason}{saved}")

    def _lost(self, lost: WorkerLost, places: Sequence[int]) -> CommandFailed:
        """That nobody knows what the one who judged would have said: no evidence."""
        steps = [self.candidates[place].step for place in places if place == lost.item]
        return CommandFailed(
            f"a worker ended while it judged step {', '.join(map(str, steps[:1]))}: {lost.reason}",
            next_step="what was judged is kept, and the same command goes on; --skip leaves it out"
            if self.session is not None
            else "run it again, or --skip it",
        )

    def _interrupted(self, found: Found) -> Interrupted:
        if self.session is not None:
            self.session.stopped("interrupted")
        count = f"{len(self.probes)} {'judging' if len(self.probes) == 1 else 'judgings'}"
        known = [
            f"{verdict}: {', '.join(map(str, steps))}"
            for verdict in ("clean", "corrupt", "untestable")
            if (steps := self._steps(verdict))
        ]
        again = "run it again; --good STEP --bad STEP starts from what is known"
        if self.session is not None:
            again = f"the same command goes on from there: kept in {self.session.folder}"
        return Interrupted(
            f"stopped after {count}, {'; '.join(known) or 'nothing known'}",
            next_step=again,
        )

    def _steps(self, verdict: Verdict) -> list[int]:
        return sorted(
            self.candidates[place].step
            for place, judgement in self.judgements.items()
            if judgement.verdict == verdict
        )
