"""`sdc-bisect verify`: replay an interval and name the first step that differs.

Two replays: the first finds the step and the tensors; the second must agree with the first, and
keeps those tensors, from which element and bits are solved and proven against the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdc_guard.detect.counters import KIND as COUNTER
from sdc_guard.errors import ArchiveIncomplete, NotReproducible
from sdc_guard.signals.capture import CaptureRequest
from sdc_guard.signals.environment import differences
from sdc_guard.store.reader import RunReader

from .answer import Finding, equal_result, located_result
from .chain import carried
from .checkpoint import Checkpoint
from .compare import Comparison, StepDifference, compare
from .diagnose import Diagnosis, Known, classify, environment_note, verdict
from .journal import Session
from .locate import LocatedTensor, locate
from .recorded import solved_at
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
            return equal_result(comparison)
        found = comparison.difference
        with self._original() as original:
            chain = carried(original, found.step)
        known = _known(comparison, found, chain)
        diagnosis = classify(found, comparison.tensors, known)
        self.tell(f"first difference at step {found.step}: {diagnosis.kind}, {diagnosis.text}")
        unchanged = any(chain.get((x.rank, x.kind, x.name)) for x in found.before)
        if diagnosis.kind == "resume" or unchanged:  # the run had not changed it, the replay did
            raise _inexact(start.path, diagnosis.text)
        at_rest = bool(found.before) and known.carried  # the run itself shows it
        second = self._confirm(start, None if at_rest else earlier, found, folder)
        rung, why = self._verdict(diagnosis, second)
        confirmed = at_rest or earlier is not None
        tensors = tuple(self._locate(found, second))
        left = len(found.first_tensors[1]) - len(tensors)
        finding = Finding(comparison, known, diagnosis, rung, why, confirmed, tensors, left)
        return located_result(finding)

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
        if comparison.not_restored:
            names = ", ".join(f"{item.kind} {item.name}" for item in comparison.not_restored[:3])
            text = f"{len(comparison.not_restored)} of {comparison.tensors} tensors are not those"
            raise _inexact(folder, f"{text} that step {first - 1} left, {names} among them")
        return comparison

    def _original(self) -> RunReader:
        return RunReader(self.run, attempt=self.attempt)

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
            text = f"an interval without a finding, steps {origin.step + 1} to {difference.step},"
            text = f"{text} does not replay to the same bits ({what}); {note}"
        raise NotReproducible(
            text,
            where=str(start.path),
            next_step="restore generators, scheduler and data position; same threads and devices",
        )

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


def _inexact(where: Path, what: str) -> NotReproducible:
    return NotReproducible(
        f"the resume does not restore what the run had: {what}",
        where=str(where),
        next_step="restore model, optimizer, scheduler, generators and data position",
    )
