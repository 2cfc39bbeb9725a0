"""What `sdc-bisect verify` replays of a run, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sdc_guard.archive.convictions import FILE, Conviction, add_conviction
from sdc_guard.errors import (
    EXIT_RANGE_ONLY,
    ArchiveIncomplete,
    NotReproducible,
    UsageError,
)
from sdc_guard.store.reader import RunReader
from sdc_guard.store.trace_reader import TraceReader

from .bracket import find_bracket
from .chain import breaks
from .checkpoint import Checkpoint
from .counter_breaks import counter_breaks
from .interval import Interval, asked, from_bracket, newest_bracket
from .journal import Session
from .oracles.trace import TraceOracle
from .past_replays import SAME_BITS
from .proven_alerts import first_proven_alert, of_replay, start_before
from .recorded import from_trace, last_recorded
from .replay import Replayer
from .reporting.from_trace import open_incidents
from .result import EXIT_CLEAN, STORED_BYTES, Result
from .safe_copies import keep, put_back
from .sessions.home import Home
from .sessions.live import sessions_of
from .sessions.open_bracket import open_bracket
from .storage import storage_result
from .unfinished import put_back_left, session_for
from .verify import Verifier
from .watched import Watch, percent
from .wording import alert_in_words
from .written_over import Before, at_risk, warning

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Attributes:
        start: step of the checkpoint to replay from; None for the last clean one.
        until: the last step to replay; None for the end of the bracket, or the last checkpoint.
        attempt: whose lineage is verified; None for the newest.
        fresh: whether an interrupted session is left alone, and all is replayed anew.
        named: folder of the sessions, if the user named one.
        overwrite: whether to replay what may write over checkpoints that there is no room to copy.
    """

    start: int | None = None
    until: int | None = None
    attempt: int | None = None
    fresh: bool = False
    named: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Verification:
    """What is known before anything is replayed.

    Attributes:
        run: the run's folder.
        asked: as above.
        candidates: the checkpoints that count, by step.
        bracket: what the record says of them.
        interval: what to replay; None for nothing.
        watched: how much of the state was compared up to where the replay begins.
        attempts, newest: how many the run has, and the attempt whose steps are replayed.
    """

    run: Path
    asked: Asked
    candidates: tuple[Checkpoint, ...]
    bracket: Result
    interval: Interval | None
    watched: float
    attempts: int
    newest: int

    @classmethod
    def of(
        cls, reader: TraceReader, candidates: Sequence[Checkpoint], wanted: Asked, tell: Tell
    ) -> Verification:
        """Look at what is recorded.

        Raises:
            UsageError: no such checkpoint or interval.
            ArchiveIncomplete: no checkpoint can be judged, or none to begin with is clean.
        """
        interval: Interval | None
        if wanted.start is None:
            if wanted.until is not None:
                raise UsageError("--to needs --from", next_step="--from the step of a checkpoint")
            bracket, interval = _bracket(reader, candidates, wanted, tell)
        else:
            interval = asked(candidates, wanted.start, wanted.until, last_recorded(reader))
            bracket = find_bracket([interval.start], TraceOracle(reader), None, tell)
        share = 1.0 if interval is None else Watch(reader).watched(interval.start.step).share
        attempts = reader.run_file.attempts
        newest = wanted.attempt or (attempts[-1].attempt if attempts else 1)
        return cls(
            Path(reader.run), wanted, tuple(candidates), bracket, interval, share, len(attempts),
            newest,
        )  # fmt: skip

    def result(self, replayer: Replayer, tell: Tell) -> Result:
        """Replay, compare and answer; what is proven is noted in the archive.

        Raises:
            CommandFailed, NotReproducible, ArchiveIncomplete: as for `Verifier.verify`.
        """
        if self.interval is None:
            tell("nothing was replayed; --from STEP replays from that checkpoint all the same")
            self._convict(self.bracket, "", tell)
            return self.bracket
        interval = self.interval
        inputs = {
            **replayer.inputs(),
            "from": interval.start.step,
            "to": interval.until,
            "attempt": self.asked.attempt,
            "attempts": self.attempts,
        }
        if self.asked.named is not None:  # there may be others' in it
            inputs["run"] = str(self.run.resolve())
        home = Home.of(self.run, self.asked.named)
        home.make()
        put_back_left(home.folder, self.attempts, tell)
        with session_for(home.folder, inputs, tell, fresh=self.asked.fresh) as session:
            before = Before.of(self.candidates)
            self._keep(session, inputs.get("command", ()), tell)
            try:
                result = self._replayed(replayer, session, tell)
            except BaseException:  # Ctrl-C too, because nothing may be lost by it
                for line in _ended(session, before):  # it may be why replays do not repeat
                    tell(line)
                raise
            told = _ended(session, before)
            result = replace(result, evidence=(*result.evidence, *told))
            about = {"attempts": self.attempts, "attempt": self.asked.attempt}
            session.finish({**result.as_dict(), **about})
            self._convict(result, session.folder.name, tell)
        return result

    def _keep(self, session: Session, command: Sequence[str], tell: Tell) -> None:
        """Copy what replays may write over.

        Raises:
            UsageError: there is no room for it.
        """
        assert self.interval is not None
        one = self.interval
        start = (one.earlier or one.start).step  # a second replay may begin there
        until = max([one.until, *(last for _, last in one.after)])
        own, archive = at_risk(command, self.run, self.candidates, start, until)
        if not keep(session.folder, own, archive, self.asked.overwrite):
            tell(warning(own[0]))

    def _replayed(self, replayer: Replayer, session: Session, tell: Tell) -> Result:
        assert self.interval is not None
        interval, bracket = self.interval, self.bracket
        verifier = Verifier(self.run, self.asked.attempt, replayer, session, tell)
        try:
            result = verifier.verify(
                interval.start, interval.until, interval.earlier, interval.after
            )
        except NotReproducible as error:
            return self._shown_by_the_run(error)
        if self.asked.start is not None and bracket.first_corrupt is not None:
            right = f"on condition that checkpoint {self.asked.start} is right, and it is not: "
            result = replace(
                result,
                evidence=(right + bracket.evidence[0], *result.evidence),
                unsettled=EXIT_RANGE_ONLY,
            )
        elif bracket.kind == STORED_BYTES and result.first_corrupt is None:
            result = storage_result(self._corrupt(), interval.start.step, result)
        with RunReader(self.run, attempt=self.asked.attempt) as reader:
            result = of_replay(reader, result, interval.start.step, interval.until)
            result = self._same_bits(reader, result)
        return self._on_condition(result)

    def _same_bits(self, reader: TraceReader, result: Result) -> Result:
        """The same answer; where all steps gave the same bits, what that says of an incident."""
        assert self.interval is not None
        after, until = self.interval.start.step, self.interval.until
        whole = result.exit_code == EXIT_CLEAN or result.proven_alert is not None
        if result.first_corrupt is not None or not whole or result.kind == STORED_BYTES:
            return result
        result = replace(result, same_bits={"after": after, "until": until})
        inside = [step for step, _ in open_incidents(reader) if after < step <= until]
        if not inside or result.proven_alert is not None:  # of that one it is said already
            return result
        line = f"incident open since step {inside[0]}: {SAME_BITS}"
        return replace(result, evidence=(line, *result.evidence))

    def _shown_by_the_run(self, error: NotReproducible) -> Result:
        """What the record itself proves within the interval, where replays show nothing.

        Raises:
            NotReproducible: nothing.
        """
        assert self.interval is not None
        with RunReader(self.run, attempt=self.asked.attempt) as reader:
            proven = from_trace(reader)
        inside = range(self.interval.start.step + 1, self.interval.until + 1)
        if proven is None or proven.first_corrupt not in inside:
            raise error
        evidence = (*proven.evidence[:-1], f"replays add nothing: {error.what}")
        return replace(proven, evidence=evidence)

    def _corrupt(self) -> Checkpoint:
        found = [one for one in self.candidates if one.step == self.bracket.first_corrupt]
        if not found:
            raise ArchiveIncomplete(f"checkpoint {self.bracket.first_corrupt} is gone")
        return found[-1]

    def _on_condition(self, result: Result) -> Result:
        """Say on what the answer rests where the state before it was watched in part."""
        if self.watched == 1 or self.interval is None:
            return result
        share = f"{percent(self.watched)} of the state's transitions up to it were compared"
        text = f"on condition that checkpoint {self.interval.start.step} is right: {share}"
        return replace(result, evidence=(*result.evidence, text))

    def _convict(self, result: Result, session: str, tell: Tell) -> None:
        """Note beside the checkpoints which of them the answer speaks against."""
        archive = self.run / "archive"
        if result.command != "verify" or not result.proven or result.first_corrupt is None:
            return
        if not archive.is_dir():
            return
        stored = result.kind == STORED_BYTES
        names = ", ".join(f"{tensor.kind} {tensor.name}" for tensor in result.tensors[:3])
        what = f"{result.kind}, {names}" if names else str(result.kind)
        step = result.first_corrupt
        known = [one.step for one in self.candidates if one.step < step]
        conviction = Conviction(
            attempt=self._corrupt().attempt if stored else self._attempt_of(step),
            last_clean=result.last_clean if known or stored else None,
            first_corrupt=step,
            reason=what,
            checkpoint=self._corrupt().path.name if stored else None,
            session=session,
        )
        try:
            added = add_conviction(archive, conviction)
        except OSError as error:
            tell(
                f"the archive cannot be written ({error.strerror}): its checkpoints stay as sealed"
            )
            return
        if added:
            which = f"that of step {step} is" if stored else f"those from step {step} on are"
            tell(f"noted in {archive.name}/{FILE}: of the checkpoints {which} suspect")

    def _attempt_of(self, step: int) -> int:
        """The attempt whose row of the step counts."""
        with suppress(IndexError), RunReader(self.run, attempt=self.asked.attempt) as reader:
            query = "SELECT any_value(attempt) FROM steps WHERE step = $step"
            return int(reader.rows(query, {"step": step})[0][0] or self.newest)
        return self.newest


def _ended(session: Session, before: Before) -> list[str]:
    """Put back what replays wrote over; lines that say so, and what could not be."""
    told = put_back(session.folder)
    over = before.written_over()
    return told if over is None else [*told, over]


def _bracket(
    reader: TraceReader, candidates: Sequence[Checkpoint], wanted: Asked, tell: Tell
) -> tuple[Result, Interval | None]:
    """The bracket to replay: the one found last, else the one that the trace shows."""
    attempts = len(reader.run_file.attempts)
    recorded = last_recorded(reader)
    attempt, run = wanted.attempt, Path(reader.run)
    sessions = sessions_of(Home.of(run, wanted.named))
    known = newest_bracket(sessions, attempts, attempt)
    if (current := open_bracket(run, candidates, attempt, wanted.named)) is not None:
        tell(f"the open session's bracket: ({current.last_clean}, {current.first_corrupt}]")
        result = current
    elif known is not None:
        tell(f"the bracket that run found: ({known['last_clean']}, {known['first_corrupt']}]")
        result = Result.of_bracket(known)
    else:
        result = find_bracket(candidates, TraceOracle(reader), None, tell)
    if result.last_clean is None and (proven := from_trace(reader)) is not None:
        return proven, None
    if result.first_corrupt is not None:
        ends = (result.last_clean, result.first_corrupt)
        return result, from_bracket(candidates, *ends, recorded)
    # the training may have ended after the corruption and before its next checkpoint
    steps = [step for step, _, _ in breaks(reader)] + [x.step for x in counter_breaks(reader)]
    later = [step for step in sorted(steps) if step > (result.last_clean or 0)]
    alert = first_proven_alert(reader)
    start = None if alert is None else start_before(alert, candidates)
    if alert is not None and start is not None and not (later and later[0] <= alert.step):
        tell(alert_in_words(alert.as_dict()))
        return result, asked(candidates, start.step, alert.step, recorded)
    if later and result.last_clean is not None:
        return result, asked(candidates, result.last_clean, later[0], recorded)
    return result, None
