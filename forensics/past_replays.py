"""What replays of a run have shown by now: a step that is proven wrong, or the same bits again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sdc_guard.archive.convictions import FILE, read_convictions
from sdc_guard.store.lineage import counts, lineage
from sdc_guard.store.trace_reader import TraceReader

from .journal import Session
from .reservations import BETWEEN_COMPARISONS, WRONG_VALUES
from .result import STORED_BYTES, Result
from .two_findings import State

SAME_BITS: Final = (
    "the same bits came again: code, schedule or data, or a device that repeats its mistake"
)
_ADVICE: Final = (WRONG_VALUES, BETWEEN_COMPARISONS)


@dataclass(frozen=True)
class Proof:
    """A step that a replay proved wrong.

    Attributes:
        step: the first one.
        last_clean: the last step known to have left a right state; None where none is.
        reason: why, in a line.
        session: that proved it; "" where that is not kept.
    """

    step: int
    last_clean: int | None
    reason: str
    session: str

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {
            "step": self.step,
            "last_clean": self.last_clean,
            "reason": self.reason,
            "session": self.session,
        }


def first_proof(reader: TraceReader) -> Proof | None:
    """The earliest one that counts in the lineage read; None without one.

    The archive's convictions count where it keeps any: a line that was deleted was taken back.
    Else the sessions in the run's folder do.
    """
    run = Path(reader.run)
    if (run / "archive" / FILE).is_file():
        spans = lineage(reader.run_file.attempts, reader.attempt)
        found = [
            Proof(one.first_corrupt, one.last_clean, one.reason, one.session)
            for one in read_convictions(run / "archive")
            if one.checkpoint is None and counts(spans, one.attempt, one.first_corrupt)
        ]
    else:
        found = [_proof(name, one) for name, one in _verified(reader) if _proves(one)]
    return min(found, key=lambda one: one.step, default=None)


def with_proof(reader: TraceReader, result: Result) -> Result:
    """The answer of a search; where it calls clean what a replay proved wrong, the proof's.

    What a step computes wrong is saved as it was computed: that the bytes are those that were
    trained takes no proof back.

    Args:
        reader: of the run.
        result: of a search.
    """
    found = first_proof(reader)
    if found is None or result.first_good or not result.stable:
        return result
    state = result.state
    wrong = result.first_corrupt if state is None else state.first_corrupt
    clean = result.last_clean if state is None else state.last_clean
    if wrong is not None and (clean is None or clean < found.step):
        return result  # what was found agrees with it
    by = f"session {found.session}" if found.session else "a replay before"
    line = f"{by} proved step {found.step} wrong: {found.reason}"
    kept = [one for one in result.evidence if not one.startswith(_ADVICE)]
    if state is not None:
        known = State("corrupt", found.last_clean, found.step, True, line)
        return replace(result, state=known, evidence=(*kept, line))
    return replace(
        result,
        last_clean=found.last_clean,
        first_corrupt=found.step,
        exact=found.last_clean == found.step - 1,
        proven=True,
        claim=None,
        unsettled=None,
        proven_by=found.as_dict(),
        evidence=(line, *kept),
    )


def same_bits_by(
    sessions: Iterable[tuple[str, Mapping[str, Any]]], steps: Sequence[int]
) -> str | None:
    """The newest replay that ran all of these steps to the same bits; None without one.

    Args:
        sessions: name and result, oldest first, of the run as it is now.
        steps: that are suspected.
    """
    named = None
    for name, result in sessions:
        ends = result.get("same_bits")
        if not isinstance(ends, Mapping) or not steps:
            continue
        after, until = ends.get("after"), ends.get("until")
        if isinstance(after, int) and isinstance(until, int):
            named = name if after < min(steps) and max(steps) <= until else named
    return named


def same_bits_in(reader: TraceReader, steps: Sequence[int]) -> str | None:
    """`same_bits_by` of the sessions in the run's folder."""
    return same_bits_by(_verified(reader), steps)


def _verified(reader: TraceReader) -> list[tuple[str, dict[str, Any]]]:
    """Name and result of the verifications of the run as it is now, oldest first."""
    now = (len(reader.run_file.attempts), reader.attempt)
    found = []
    for session in Session.all(Path(reader.run)):
        result = session.result()
        if result is None or (result.get("attempts"), result.get("attempt")) != now:
            continue
        if str(result["schema"]["name"]).endswith(".verify"):
            found.append((session.folder.name, result))
    return found


def _proves(result: Mapping[str, Any]) -> bool:
    step, kind = result.get("first_corrupt"), result.get("class")
    return bool(result.get("proven")) and type(step) is int and kind != STORED_BYTES


def _proof(name: str, result: Mapping[str, Any]) -> Proof:
    return Proof(result["first_corrupt"], result.get("last_clean"), str(result["class"]), name)
