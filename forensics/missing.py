"""Checkpoints that the trace records and that are not in the archive any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sdc_guard.errors import EXIT_RANGE_ONLY, SdcGuardError
from sdc_guard.store.opening import open_run
from sdc_guard.store.trace_reader import TraceReader

from .checkpoint import Checkpoint
from .past_replays import SAME_BITS, same_bits_in, with_proof
from .proven_alerts import with_proven_alert
from .replay_hint import replay_command
from .reservations import EVERY_STEP, WRONG_VALUES, to_replay
from .result import Result

_MOST: Final = 10  # steps in a sentence
_RECORDED: Final = "SELECT DISTINCT step FROM checkpoints ORDER BY step"


def recorded_steps(reader: TraceReader) -> list[int]:
    """Steps of the checkpoints that the run saved, by its own record."""
    return [int(step) for (step,) in reader.rows(_RECORDED)]


def with_record(reader: TraceReader, result: Result, there: Sequence[Checkpoint]) -> Result:
    """The answer, where the run's record says that it is not all there is to say.

    Args:
        reader: of the run.
        result: of a search.
        there: the checkpoints that are there, by step.
    """
    result = with_proof(reader, result)
    if result.proven_by is not None:
        return result
    result = with_proven_alert(reader, _with_later_break(reader, result), there)
    result = _with_command(reader, result, there)
    return with_missing(result, recorded_steps(reader), [one.step for one in there])


def _with_command(reader: TraceReader, result: Result, there: Sequence[Checkpoint]) -> Result:
    """The same answer; what asks for a replay names the command, or the replay that was made."""
    place, resume = str(reader.run), reader.run_file.resume
    whole = [one.step for one in there if one.readable and one.resumable]
    span = to_replay(there, result.first_corrupt)
    lines = []
    for line in result.evidence:
        told = line
        if line.endswith(EVERY_STEP) and whole:
            told = f"{line}: {replay_command(place, resume, whole[0])}"
        elif line.startswith(WRONG_VALUES) and result.proven_alert is None and span is not None:
            start, until = span
            told = (
                f"{WRONG_VALUES}, so this search does not see it: "
                f"{replay_command(place, resume, start, until)} runs them again and compares"
            )
            if (by := same_bits_in(reader, (start + 1, until))) is not None:
                told = f"steps {start + 1} to {until} were replayed by session {by}: {SAME_BITS}"
        lines.append(told)
    return replace(result, evidence=tuple(lines))


def of_session(
    archive: Path, attempt: int | None, result: Result, there: Sequence[Checkpoint]
) -> Result:
    """`with_record` for the answer of a session; of archives that no guard recorded as it was.

    Args:
        archive: of the session.
        attempt: of it.
        result, there: as `with_record`.
    """
    from .sessions.home import is_guarded

    if not is_guarded(archive):
        return result
    try:
        with open_run(archive, attempt) as reader:
            return with_record(reader, result, there)
    except SdcGuardError as error:
        said = f"which checkpoints were saved is not known, for the record says: {error.what}"
        return replace(result, evidence=(*result.evidence, said))


def with_missing(result: Result, recorded: Iterable[int], there: Sequence[int]) -> Result:
    """The answer as a range where a checkpoint that was saved is missing inside of it.

    Args:
        result: of a search.
        recorded: steps that were saved.
        there: steps of the checkpoints that are there.
    """
    low, high = result.last_clean, result.first_corrupt
    if result.first_good:
        low, high = result.last_corrupt, result.first_clean
    if high is None or not result.stable:
        return result
    known = {*there}
    gone = [
        step
        for step in recorded
        if step not in known and step < high and (low is None or low < step)
    ]
    if not gone:
        return result
    steps = ", ".join(map(str, gone[:_MOST])) + ", ..." * (len(gone) > _MOST)
    one = len(gone) == 1
    said = (
        f"missing: the checkpoint{'' if one else 's'} of step{'' if one else 's'} {steps}, which "
        f"the run saved, {'is' if one else 'are'} not in the archive: the first corrupt one may "
        f"be {'it' if one else 'one of them'}"
    )
    claim = result.claim and "transition"  # what is gone was not judged
    return replace(result, exact=False, claim=claim, evidence=(*result.evidence, said))


def _with_later_break(reader: TraceReader, result: Result) -> Result:
    """Say so if the trace proves a change after the newest clean checkpoint."""
    from .chain import breaks

    if result.first_good or result.first_corrupt is not None:
        return result
    later = [row for row in breaks(reader) if row[0] > (result.last_clean or 0)]
    if not later:
        return result
    step, kind, name = later[0]
    text = f"after it, {kind} {name} changed between step {step - 1} and step {step}: see verify"
    return replace(result, evidence=(*result.evidence, text), unsettled=EXIT_RANGE_ONLY)
