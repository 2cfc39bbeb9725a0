"""Verifying a run that no guard recorded: its log of losses against those of a replay.

A loss in full is nearly a digest of the step that it belongs to, and not more: what it does not
depend on, and what is lost in its rounding, differs unseen. So a loss that differs proves that the
run went another way by then; when it began to, it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sdc_guard.errors import (
    EXIT_RANGE_ONLY,
    ArchiveIncomplete,
    CommandFailed,
    NotReproducible,
    UsageError,
)
from sdc_guard.store.reader import RunReader

from .checkpoint import Checkpoint
from .foreign_losses import read_losses
from .journal import Session
from .loss_compare import LossComparison, Losses, compare_losses
from .replay import Replayer
from .result import Result
from .sizes import constant, described, grows

_LOGS: Final = ("**/trainer_state.json", "*.csv", "*.jsonl")
_TRACED: Final = "SELECT step, loss FROM steps WHERE rank = 0 ORDER BY step"


@dataclass(frozen=True)
class LossVerifier:
    """Replays intervals of one run within one session.

    Attributes:
        logged: what the run's log says.
        notes: what is to know of that log.
        command: the script's resume.
        session: keeps the journal and what the replays write.
        tell: called with a line per stage.
        log: name of the log that a replay writes into its folder; None to look for one.
    """

    logged: Losses
    notes: tuple[str, ...]
    command: Replayer
    session: Session
    tell: Callable[[str], None]
    log: str | None = None

    def verify(
        self,
        start: Checkpoint,
        until: int,
        earlier: Checkpoint | None,
        after: Sequence[tuple[Checkpoint, int]] = (),
    ) -> Result:
        """Replay the steps after `start` up to `until`, and compare their losses.

        Args:
            start: where to begin; that it is right is assumed.
            until: the last step.
            earlier, after: checkpoints to calibrate by, see `Verifier.verify`.

        Raises:
            CommandFailed: the command fails, or leaves no losses.
            NotReproducible: steps that should be clean do not replay to the same losses, or two
                replays differ from each other.
            ArchiveIncomplete: log and replay share no step.
        """
        first = self._losses("replay-1", start, until)
        found = self._compare(first, start.step + 1, until)
        if found.difference is None:
            return self._equal(start, found)
        step = found.difference.pair.step
        self.tell(f"first difference at step {step}: {found.difference.what}")
        origin = earlier or start
        second = self._losses("replay-2", origin, step)
        calibrated = earlier is not None
        if earlier is not None:
            again = self._compare(second, origin.step + 1, step)
            if again.difference is None or again.difference.pair.step != step:
                raise _not_reproducible(again, origin)
        else:
            later = next((span for span in after if span[0].step >= step), None)
            if later is not None:
                self._calibrate(*later)
            calibrated = later is not None
        repeated = compare_losses(first, second, start.step + 1, step)
        if repeated.difference is not None:
            raise _not_reproducible(repeated, origin, repeats=False)
        return self._differs(start, found, calibrated)

    def _losses(self, name: str, start: Checkpoint, until: int) -> Losses:
        self.tell(f"{name}: steps {start.step + 1} to {until}, from {start.path.name}")
        self.session.note("replay", name=name, start=start.step, until=until)
        folder = self.command.replay(start, until, self.session.folder / name)
        return replayed_losses(folder, self.log)

    def _compare(self, replayed: Losses, first: int, last: int) -> LossComparison:
        found = compare_losses(self.logged, replayed, first, last)
        if not found.steps:
            raise ArchiveIncomplete(
                f"nothing to compare: the log and the replay share no step of {first}..{last}",
                next_step="are the steps of both counted from the same one, and each logged?",
            )
        return found

    def _calibrate(self, start: Checkpoint, until: int) -> None:
        found = self._compare(self._losses("calibration", start, until), start.step + 1, until)
        if found.difference is not None:
            raise _not_reproducible(found, start)

    def _equal(self, start: Checkpoint, found: LossComparison) -> Result:
        return Result(
            command="verify",
            last_clean=found.steps[-1],
            first_corrupt=None,
            exact=False,
            proven=False,
            evidence=(
                f"the losses of {len(found.steps)} steps replay as they were logged{_norms(found)}",
                *self._reservations(start, found),
            ),
        )

    def _differs(self, start: Checkpoint, found: LossComparison, calibrated: bool) -> Result:
        assert found.difference is not None
        pair, what = found.difference.pair, found.difference.what
        before = sum(step < pair.step for step in found.steps)
        evidence = [
            f"step {pair.step} is the first whose {what} differs: logged {pair.run!r}, replayed "
            f"{pair.replay!r}; {described(pair)}".replace("the loss", f"the {what}"),
            f"the losses of {before} steps before it replay as they were logged",
            "two replays agree, and the run differs from both",
        ]
        if not calibrated:
            evidence.append("one checkpoint to replay from: an inexact resume is not excluded")
        return Result(
            command="verify",
            last_clean=start.step,
            first_corrupt=pair.step,
            exact=False,
            proven=calibrated,
            kind="unknown",
            verdict="undetermined",
            evidence=(*evidence, *self._reservations(start, found)),
            unsettled=EXIT_RANGE_ONLY,
        )

    def _reservations(self, start: Checkpoint, found: LossComparison) -> list[str]:
        """What a comparison of losses cannot say."""
        return [
            f"losses {found.loss.text()}",
            "a loss does not show bits that it does not depend on, or that are lost in its "
            "rounding: tensors and bits are not known, and a fault may have begun before it shows",
            f"on condition that checkpoint {start.step} is right: a log of losses does not tell",
            *self.notes,
        ]


def replayed_losses(folder: Path, log: str | None) -> Losses:
    """What a replay recorded: by a guard, or in a log of its own.

    A guard's gradient norms are summed otherwise than a trainer's, and left out.

    Args:
        folder: of the replay.
        log: name of the log in it; None to look for one.

    Raises:
        CommandFailed: there is neither.
        LogUnreadable: the log is damaged.
    """
    if log is None and (folder / "run.json").is_file():
        with RunReader(folder) as reader:
            return {step: (loss, None) for step, loss in reader.rows(_TRACED)}
    patterns = _LOGS if log is None else (log,)
    for pattern in patterns:
        found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        if found:
            return read_losses(found[-1]).losses
    raise CommandFailed(
        "the resume command ran, and left no losses",
        where=str(folder),
        next_step="attach Guard(...) in the script, or have it write its log into {run} and name "
        "it by --replay-log",
    )


def default_start(candidates: Sequence[Checkpoint], start: int | None) -> int:
    """The step to replay from: the one asked for, else the first checkpoint's.

    Raises:
        UsageError: none can be read.
    """
    readable = [one.step for one in candidates if one.readable]
    if start is not None:
        return start
    if not readable:
        raise UsageError("none of the checkpoints can be read")
    return readable[0]


def _norms(found: LossComparison) -> str:
    return f", and the gradient norms of {len(found.norms)}" if found.norms else ""


def _not_reproducible(
    found: LossComparison, start: Checkpoint, *, repeats: bool | None = None
) -> NotReproducible:
    first = start.step + 1
    how = "the resume depends on where it begins"
    if found.difference is not None:
        pair = found.difference.pair
        how = f"the {found.difference.what} of step {pair.step} differs ({described(pair)})"
    if constant([pair.replay for pair in found.pairs]):
        text = f"the replay gives the same loss at each step, whatever the batch; {how}"
    elif repeats is False or grows(found.pairs):
        text = (
            f"{how}, and grows from rounding or from replay to replay: turn on deterministic mode"
        )
    elif found.difference is not None and found.difference.pair.step == first:
        text = f"{how} at the first step: generators, buffers or the data position not restored"
    else:
        text = how
    return NotReproducible(
        f"not reproducible, because {text}",
        where=f"steps {first} to {found.last}, from {start.path}",
        next_step="restore generators, scheduler, buffers and data position; the same threads, "
        "versions and devices",
    )
