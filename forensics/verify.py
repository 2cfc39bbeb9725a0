"""`sdc-bisect verify`: replay an interval and name the first step that differs.

Two replays: the first finds the step and the tensors; the second must agree with the first, and
keeps those tensors, from which element and bits are solved and proven against the trace. Before
what was computed is convicted, an interval besides must replay to the same bits: the one before,
which the second replay begins with, or where there is none the one after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sdc_guard.detect.counters import KIND as COUNTER
from sdc_guard.errors import ArchiveIncomplete, NotReproducible
from sdc_guard.signals.capture import CaptureRequest
from sdc_guard.store.reader import RunReader

from .accused import machine_of
from .answer import Finding, equal_result, located_result
from .calibration import Kept, Mismatch, because, setting_texts, settings_explain
from .chain import carried
from .checkpoint import Checkpoint
from .compare import Comparison, StepDifference, compare
from .counter_breaks import CounterBreak, counter_breaks, counter_result, is_consequence
from .diagnose import Diagnosis, Known, classify, verdict
from .journal import Session
from .kept import kept_in
from .locate import LocatedTensor, locate
from .loss_pairs import loss_pairs
from .recorded import solved_at
from .replay import Replayer, recorded_by_guard
from .result import Result

Span = tuple[Checkpoint, int]
"""A checkpoint, and the last step to replay from it."""

_CALIBRATIONS: Final = 2  # intervals after a difference: a second one, if the first differs, too
MOST_TENSORS = 12  # located by element; the rest of a difference that wide says nothing more


@dataclass(frozen=True)
class Verifier:
    """Replays intervals of one run within one session.

    Attributes:
        run: the run's folder.
        attempt: the attempt whose lineage is verified, or None for the newest.
        command: the script's resume.
        session: keeps the journal and the replayed traces.
        tell: called with a line per stage.
    """

    run: Path
    attempt: int | None
    command: Replayer
    session: Session
    tell: Callable[[str], None]

    def verify(
        self,
        start: Checkpoint,
        until: int,
        earlier: Checkpoint | None,
        after: Sequence[Span] = (),
    ) -> Result:
        """Replay the steps after `start` up to `until` and compare them with the trace.

        Args:
            start: a clean checkpoint.
            until: the last step to compare.
            earlier: the clean checkpoint before `start`, or None. A difference in what is
                computed is believed when replays from both checkpoints show the same: an inexact
                resume depends on where it begins, a fault of the run does not.
            after: what to calibrate by where there is no earlier one: checkpoints after `start`,
                each with the last step to replay from it. A fault before one of them does not
                keep it from replaying to the same bits.

        Raises:
            CommandFailed: the resume command fails or records nothing.
            NotReproducible: the replay differs for a reason that is not the run's.
            ArchiveIncomplete: the trace lacks the steps to compare with.
        """
        folder = self._replay("replay-1", start, until)
        comparison = self._compare(folder, start, until)
        found = comparison.difference
        with self._original() as original:
            world = original.run_file.world_size
            chain = {} if found is None else carried(original, found.step)
            counter = self._counter(original, start.step, until)
            if counter is not None and is_consequence(found, counter):
                return self._with_machine(counter_result(original, counter, found))
        if found is None:
            return equal_result(comparison)
        known = _known(comparison, found, chain)
        diagnosis = classify(found, comparison.tensors, known, world)
        self.tell(f"first difference at step {found.step}: {diagnosis.kind}, {diagnosis.text}")
        unchanged = any(chain.get((x.rank, x.kind, x.name)) for x in found.before)
        if diagnosis.kind == "resume" or unchanged:  # the run had not changed it, the replay did
            raise self._inexact(start, folder, comparison)
        at_rest = bool(found.before) and known.carried  # the run itself shows it
        later = [span for span in after if span[0].step >= found.step]
        if not at_rest and earlier is None and later:
            self._calibrate(later[:_CALIBRATIONS])
        confirmed = at_rest or earlier is not None or bool(later)
        doubt = () if confirmed else self._settings(start, folder, comparison)
        second = self._confirm(start, None if at_rest else earlier, found, folder)
        rung, why = self._verdict(diagnosis, second)
        tensors = tuple(self._locate(found, second))
        left = len(found.first_tensors[1]) - len(tensors)
        finding = Finding(comparison, known, diagnosis, rung, why, confirmed, tensors, left)
        result = located_result(finding)
        return self._with_machine(replace(result, evidence=(*result.evidence, *doubt)))

    def _with_machine(self, result: Result) -> Result:
        """The same, with the host and the devices of the rank that it names."""
        if result.first_corrupt is None or result.rank is None:
            return result
        with self._original() as original:
            machine = machine_of(original, result.first_corrupt, result.rank)
        return result if machine is None else replace(result, machine=machine.as_dict())

    def _replay(
        self, name: str, start: Checkpoint, until: int, capture: CaptureRequest | None = None
    ) -> Path:
        self.tell(f"{name}: steps {start.step + 1} to {until}, from {start.path.name}")
        self.session.note("replay", name=name, start=start.step, until=until)
        folder = self.session.folder / name
        return recorded_by_guard(self.command.replay(start, until, folder, capture))

    def _compare(self, folder: Path, start: Checkpoint, last: int) -> Comparison:
        first = start.step + 1
        with self._original() as original, RunReader(folder) as replayed:
            comparison = compare(original, replayed, first, last)
        if not comparison.steps or not comparison.tensors:
            raise ArchiveIncomplete(
                f"nothing to compare: the trace and the replay share no step of {first}..{last}",
                where=str(self.run),
                next_step="is the script's step the one that Guard(first_step=...) counts from?",
            )
        if comparison.not_restored:
            names = ", ".join(f"{item.kind} {item.name}" for item in comparison.not_restored[:3])
            text = f"{len(comparison.not_restored)} of {comparison.tensors} tensors are not those"
            raise NotReproducible(
                "not reproducible, because the resume does not restore what the run had: "
                f"{text} that step {start.step} left, {names} among them",
                where=str(folder),
                next_step="restore model, buffers and optimizer, each into the same object",
            )
        return comparison

    def _original(self) -> RunReader:
        return RunReader(self.run, attempt=self.attempt)

    def _counter(self, original: RunReader, after: int, until: int) -> CounterBreak | None:
        return next((x for x in counter_breaks(original) if after < x.step <= until), None)

    def _calibrate(self, later: Sequence[Span]) -> None:
        """Replay intervals that begin after the difference, until one does not differ.

        There may be a fault of its own in one of them; an inexact resume shows in each.
        """
        inexact = None
        for number, (start, until) in enumerate(later, start=1):
            folder = self._replay(f"calibration-{number}", start, until)
            comparison = self._compare(folder, start, until)
            if comparison.difference is None:
                return
            inexact = inexact or self._inexact(start, folder, comparison)
        if inexact is not None:
            raise inexact

    def _settings(self, start: Checkpoint, folder: Path, comparison: Comparison) -> tuple[str, ...]:
        """What to say of settings that differ, where no interval tells whether they matter.

        Raises:
            NotReproducible: they explain the difference.
        """
        mismatch = self._mismatch(start, folder, comparison)
        if settings_explain(mismatch):
            raise self._inexact(start, folder, comparison)
        if not mismatch.settings:
            return ()
        text = "; ".join(setting_texts(mismatch.settings))
        return (f"the settings differ: {text}; that these made the difference is not excluded",)

    def _confirm(
        self,
        start: Checkpoint,
        earlier: Checkpoint | None,
        found: StepDifference,
        first_replay: Path,
    ) -> Path:
        """Replay once more, from `earlier` if given, keeping the tensors that differ.

        Both replays must agree.
        """
        with RunReader(first_replay) as reader:
            numbers = {layer.name: layer.id for layer in reader.run_file.named}
        phase, differing = found.first_tensors
        keys = tuple((item.kind, numbers[item.name]) for item in differing[:MOST_TENSORS])
        capture = CaptureRequest(found.step, phase, keys)
        origin = earlier or start
        second = self._replay("replay-2", origin, found.step, capture)
        if origin is not start:
            self._same_from(origin, start, found, second)
        with RunReader(first_replay) as one, RunReader(second) as two:
            comparison = compare(one, two, start.step + 1, found.step)
        if comparison.difference is not None:
            raise self._inexact(start, second, comparison, of=first_replay, repeats=False)
        return second

    def _same_from(
        self, origin: Checkpoint, start: Checkpoint, found: StepDifference, second: Path
    ) -> None:
        """The replay from the earlier checkpoint must differ from the run at the same step."""
        comparison = self._compare(second, origin, found.step)
        difference = comparison.difference
        if difference is None:
            what = classify(found, 10**9).text
            raise NotReproducible(
                f"not reproducible, because the resume depends on where it begins: step "
                f"{found.step} replays as recorded from step {origin.step}, and not from step "
                f"{start.step} ({what})",
                where=str(start.path),
                next_step="restore generators, scheduler and data position",
            )
        if difference.step != found.step:
            raise self._inexact(origin, second, comparison)

    def _inexact(
        self,
        start: Checkpoint,
        folder: Path,
        comparison: Comparison,
        *,
        of: Path | None = None,
        repeats: bool | None = None,
    ) -> NotReproducible:
        """The error for steps from `start` on that should have replayed to the same bits.

        Args:
            folder: the replay.
            of: another replay that it was compared with; by default the run itself.
        """
        mismatch = self._mismatch(start, folder, comparison, of)
        reason = because(replace(mismatch, repeats=repeats))
        return NotReproducible(
            f"not reproducible, because {reason.text}",
            where=f"steps {mismatch.first} to {comparison.last}, from {start.path}",
            next_step=reason.next_step,
        )

    def _mismatch(
        self, start: Checkpoint, folder: Path, comparison: Comparison, of: Path | None = None
    ) -> Mismatch:
        """What is recorded of a difference; of two replays if `of` is another one."""
        found = comparison.difference
        assert found is not None
        first = start.step + 1
        with RunReader(of) if of else self._original() as one, RunReader(folder) as replayed:
            before = one.run_file.environment(None if of else self.attempt)
            rank = found.ranks[0] if found.ranks else 0
            losses = loss_pairs(one, replayed, first, comparison.last, rank)
            now = replayed.run_file.environment()
        kept = kept_in(start) if found.step == first else Kept()
        return Mismatch(first, found, before, now, losses, kept=kept)

    def _locate(self, found: StepDifference, second: Path) -> list[LocatedTensor]:
        phase, differing = found.first_tensors
        with self._original() as original, RunReader(second) as replayed:
            solved = solved_at(original, found.step)
            return [
                (solved.get((item.kind, item.name)) if item.kind == COUNTER else None)
                or locate(original, replayed, found.step, phase, item)
                for item in differing[:MOST_TENSORS]
            ]

    def _verdict(self, diagnosis: Diagnosis, second: Path) -> tuple[str, str]:
        if diagnosis.kind == "batch":
            return "data or software", "the batches differ before anything is computed"
        with self._original() as original, RunReader(second) as replayed:
            before = original.run_file.environment(self.attempt)
            return verdict(before, replayed.run_file.environment())


def _known(
    comparison: Comparison, found: StepDifference, chain: dict[tuple[int, str, str], bool]
) -> Known:
    """How much of the state around a difference was compared."""
    return Known(
        before=found.step in comparison.whole_before,
        left=comparison.known_up_to(found.step) == found.step - 1,
        carried=all((x.rank, x.kind, x.name) in chain for x in found.before),
    )
