"""`sdc-bisect verify`: replay an interval and name the first step that differs.

Two replays: the first finds the step and the tensors; the second must agree with the first, and
keeps those tensors, from which element and bits are solved and proven against the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdc_guard.errors import EXIT_RANGE_ONLY, ArchiveIncomplete, NotReproducible
from sdc_guard.signals.capture import CaptureRequest
from sdc_guard.signals.environment import differences
from sdc_guard.store.reader import RunReader

from .checkpoint import Checkpoint
from .compare import Comparison, StepDifference, compare
from .diagnose import Diagnosis, classify, environment_note, verdict
from .journal import Session
from .locate import LocatedTensor, locate
from .oracles.trace import breaks
from .replay import ResumeCommand, replay
from .result import Result

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
    command: ResumeCommand
    session: Session
    tell: Callable[[str], None]

    def verify(self, start: Checkpoint, until: int, earlier: Checkpoint | None) -> Result:
        """Replay the steps after `start` up to `until` and compare them with the trace.

        Args:
            start: a clean checkpoint.
            until: the last step to compare.
            earlier: the clean checkpoint before `start`, or None. A difference in what is
                computed is believed when replays from both checkpoints show the same: an inexact
                resume depends on where it begins, a fault of the run does not.

        Raises:
            CommandFailed: the resume command fails or records nothing.
            NotReproducible: the replay differs for a reason that is not the run's.
            ArchiveIncomplete: the trace lacks the steps to compare with.
        """
        first = start.step + 1
        folder = self._replay("replay-1", start, until)
        comparison = self._compare(folder, first, until)
        if comparison.difference is None:
            return self._equal(start, until, comparison)
        found = comparison.difference
        diagnosis = classify(found, comparison.tensors)
        self.tell(f"first difference at step {found.step}: {diagnosis.kind}, {diagnosis.text}")
        if diagnosis.kind == "resume" or (found.before and not self._broke(found)):
            raise NotReproducible(
                f"the resume does not restore what the run had: {diagnosis.text}",
                where=str(start.path),
                next_step="restore model, optimizer, scheduler, generators and data position",
            )
        second = self._confirm(start, earlier, found, folder)
        tensors = self._locate(found, second)
        return self._located(start, earlier, comparison, diagnosis, tensors)

    def _replay(
        self, name: str, start: Checkpoint, until: int, capture: CaptureRequest | None = None
    ) -> Path:
        self.tell(f"{name}: steps {start.step + 1} to {until}, from {start.path.name}")
        self.session.note("replay", name=name, start=start.step, until=until)
        return replay(self.command, start, until, self.session.folder / name, capture)

    def _compare(self, folder: Path, first: int, last: int) -> Comparison:
        with self._original() as original, RunReader(folder) as replayed:
            comparison = compare(original, replayed, first, last)
        if not comparison.steps or not comparison.tensors:
            raise ArchiveIncomplete(
                f"nothing to compare: the trace and the replay share no step of {first}..{last}",
                where=str(self.run),
                next_step="is the script's step the one that Guard(first_step=...) counts from?",
            )
        return comparison

    def _original(self) -> RunReader:
        return RunReader(self.run, attempt=self.attempt)

    def _equal(self, start: Checkpoint, until: int, comparison: Comparison) -> Result:
        evidence = [
            f"{comparison.steps} steps replayed, {comparison.tensors} tensors a step "
            "equal the trace, bit for bit"
        ]
        missing = comparison.missing
        if missing:
            evidence.append(
                f"not compared: {len(missing)} steps from {missing[0]} to {missing[-1]}, "
                "whose record is incomplete"
            )
        return Result(
            command="verify",
            last_clean=missing[0] - 1 if missing else until,
            first_corrupt=None,
            exact=not missing,
            proven=not missing,
            evidence=tuple(evidence),
            unsettled=EXIT_RANGE_ONLY if missing else None,
        )

    def _broke(self, found: StepDifference) -> bool:
        """Whether the run itself, without any replay, shows the change of state."""
        with self._original() as original:
            changed = set(breaks(original))
        return all((found.step, item.kind, item.name) in changed for item in found.before)

    def _confirm(
        self,
        start: Checkpoint,
        earlier: Checkpoint | None,
        found: StepDifference,
        first_replay: Path,
    ) -> Path:
        """Replay once more, keeping the tensors that differ; both replays must agree."""
        with RunReader(first_replay) as reader:
            numbers = {layer.name: layer.id for layer in reader.run_file.layers}
        differing = (found.before or found.after)[:MOST_TENSORS]
        keys = tuple((item.kind, numbers[item.name]) for item in differing)
        capture = CaptureRequest(found.step, "before" if found.before else "after", keys)
        origin = start if found.before or earlier is None else earlier
        second = self._replay("replay-2", origin, found.step, capture)
        if origin is not start:
            self._same_from(origin, start, found, second)
        with RunReader(first_replay) as one, RunReader(second) as two:
            again = compare(one, two, start.step + 1, found.step).difference
        if again is not None:
            raise NotReproducible(
                f"two replays of the same steps differ from each other at step {again.step}",
                where=str(start.path),
                next_step="make the script deterministic: seeds, generators, data order, kernels",
            )
        return second

    def _same_from(
        self, origin: Checkpoint, start: Checkpoint, found: StepDifference, second: Path
    ) -> None:
        """The replay from the earlier checkpoint must differ from the run at the same step."""
        difference = self._compare(second, origin.step + 1, found.step).difference
        if difference is not None and difference.step == found.step:
            return
        with self._original() as original, RunReader(second) as replayed:
            before = original.run_file.environment(self.attempt)
            note = environment_note(differences(before, replayed.run_file.environment()))
        what = classify(found, 10**9).text
        if difference is None:
            text = f"step {found.step} replays as recorded from step {origin.step}, and not from"
            text = f"{text} step {start.step} ({what}): the resume depends on where it begins"
        else:
            text = f"a clean interval, steps {origin.step + 1} to {difference.step}, does not"
            text = f"{text} replay to the same bits ({what}); {note}"
        raise NotReproducible(
            text,
            where=str(start.path),
            next_step="restore generators, scheduler and data position; same threads and devices",
        )

    def _locate(self, found: StepDifference, second: Path) -> list[LocatedTensor]:
        phase = "before" if found.before else "after"
        differing = (found.before or found.after)[:MOST_TENSORS]
        with self._original() as original, RunReader(second) as replayed:
            return [locate(original, replayed, found.step, phase, item) for item in differing]

    def _located(
        self,
        start: Checkpoint,
        earlier: Checkpoint | None,
        comparison: Comparison,
        diagnosis: Diagnosis,
        tensors: list[LocatedTensor],
    ) -> Result:
        found = comparison.difference
        assert found is not None
        with self._original() as original, RunReader(self.session.folder / "replay-2") as replayed:
            before = original.run_file.environment(self.attempt)
            rung, why = verdict(before, replayed.run_file.environment())
        if diagnosis.kind == "batch":
            rung, why = "data or software", "the batches differ before anything is computed"
        gaps = [step for step in comparison.missing if step < found.step]
        whole = not gaps and (bool(found.before) or found.step not in comparison.missing)
        confirmed = bool(found.before) or earlier is not None
        evidence = [f"{found.step - start.step - 1} steps before it replay bit for bit"]
        if not whole:
            evidence = ["the record of these steps is incomplete: the fault may lie before"]
        evidence += [diagnosis.text, why]
        if not confirmed:
            rung = "undetermined"
            evidence.append("one checkpoint to replay from: an inexact resume is not excluded")
        if any(tensor.change for tensor in tensors):
            evidence.append("element and bits reproduce the recorded 64-bit digest exactly")
        ranks = {item.rank for item in (found.before or found.after)}
        return Result(
            command="verify",
            last_clean=found.step - 1 if whole else start.step,
            first_corrupt=found.step,
            exact=whole,
            proven=whole and confirmed,
            tensors=tuple(tensors),
            kind=diagnosis.kind if whole else "unknown",
            verdict=rung,
            rank=ranks.pop() if len(ranks) == 1 else None,
            evidence=tuple(evidence),
        )
