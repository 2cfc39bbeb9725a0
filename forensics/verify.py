"""`sdc-bisect verify`: replay an interval and name the first step that differs.

Two replays: the first finds the step and the tensors; the second must agree with the first, and
keeps those tensors, from which element and bits are solved and proven against the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdc_guard.errors import ArchiveIncomplete, NotReproducible
from sdc_guard.signals.capture import CaptureRequest
from sdc_guard.signals.environment import differences
from sdc_guard.store.reader import RunReader

from .checkpoint import Checkpoint
from .compare import Comparison, StepDifference, compare
from .diagnose import classify, could_be_environment, environment_note, verdict
from .journal import Session
from .locate import LocatedTensor, locate
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
            earlier: the clean checkpoint before `start`, for the calibration that a difference
                at the very first replayed step asks for; None when there is none.

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
        if diagnosis.kind == "resume":
            raise NotReproducible(
                f"the resume does not restore the state: {diagnosis.text}",
                where=str(start.path),
                next_step="restore model, optimizer, generators and data position",
            )
        if could_be_environment(comparison, diagnosis):
            self._calibrate(earlier, start, folder)
        tensors = self._locate(start, found, folder)
        return self._located(start, found, tensors, folder)

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
        text = (
            f"{comparison.steps} steps replayed, {comparison.tensors} tensors a step "
            "equal the trace, bit for bit"
        )
        evidence = [text]
        if comparison.missing:
            evidence.append(f"{comparison.missing} steps of the interval are not in both traces")
        return Result(
            command="verify",
            last_clean=until if not comparison.missing else start.step,
            first_corrupt=None,
            exact=not comparison.missing,
            proven=not comparison.missing,
            evidence=tuple(evidence),
        )

    def _calibrate(self, earlier: Checkpoint | None, start: Checkpoint, folder: Path) -> None:
        """Prove on the interval before that this environment reproduces the run at all."""
        with self._original() as original, RunReader(folder) as replayed:
            before = original.run_file.environment(self.attempt)
            now = replayed.run_file.environment()
        note = environment_note(differences(before, now))
        if earlier is None:
            raise NotReproducible(
                "the first replayed step differs, and there is no earlier clean checkpoint to "
                f"tell a fault from another environment; {note}",
                where=str(start.path),
            )
        calibration = self._replay("calibration", earlier, start.step)
        if self._compare(calibration, earlier.step + 1, start.step).difference is not None:
            raise NotReproducible(
                f"a clean interval, steps {earlier.step + 1} to {start.step}, does not replay to "
                f"the same bits here: {note}",
                where=str(earlier.path),
                next_step="replay with the run's threads, devices and versions",
            )

    def _locate(
        self, start: Checkpoint, found: StepDifference, first_replay: Path
    ) -> list[LocatedTensor]:
        phase = "before" if found.before else "after"
        differing = (found.before or found.after)[:MOST_TENSORS]
        with RunReader(first_replay) as reader:
            numbers = {layer.name: layer.id for layer in reader.run_file.layers}
        keys = tuple((item.kind, numbers[item.name]) for item in differing)
        capture = CaptureRequest(found.step, phase, keys)
        second = self._replay("replay-2", start, found.step, capture)
        with RunReader(first_replay) as one, RunReader(second) as two:
            again = compare(one, two, start.step + 1, found.step)
        if again.difference is not None:
            raise NotReproducible(
                f"two replays of the same steps differ from each other at step "
                f"{again.difference.step}",
                where=str(start.path),
                next_step="make the script deterministic: seeds, generators, data order, kernels",
            )
        with self._original() as original, RunReader(second) as replayed:
            return [locate(original, replayed, found.step, phase, item) for item in differing]

    def _located(
        self, start: Checkpoint, found: StepDifference, tensors: list[LocatedTensor], folder: Path
    ) -> Result:
        with self._original() as original, RunReader(folder) as replayed:
            steps = replayed.rows("SELECT count(*) FROM steps WHERE step < $s", {"s": found.step})
            diagnosis = classify(found, 10**9)
            before = original.run_file.environment(self.attempt)
            rung, why = verdict(before, replayed.run_file.environment())
        if diagnosis.kind == "batch":
            rung, why = "data or software", "the batches differ before anything is computed"
        ranks = {item.rank for item in (found.before or found.after)}
        evidence = [f"{steps[0][0]} steps before it replay bit for bit", diagnosis.text, why]
        if any(tensor.change for tensor in tensors):
            evidence.append("element and bits reproduce the recorded 64-bit digest exactly")
        return Result(
            command="verify",
            last_clean=found.step - 1,
            first_corrupt=found.step,
            exact=True,
            proven=True,
            tensors=tuple(tensors),
            kind=diagnosis.kind,
            verdict=rung,
            rank=ranks.pop() if len(ranks) == 1 else None,
            evidence=tuple(evidence),
        )
