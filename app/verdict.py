"""The banner's verdict: never more than the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from forensics.watched import percent

from .records import Checkpoint, Coverage, Incident
from .sessions import BATCH, SessionResult
from .wording import count, span_text

State = Literal["clean", "suspect", "corrupt", "unknown"]

SYMBOLS: Final[dict[State, str]] = {
    "clean": "✔",
    "suspect": "▲",
    "corrupt": "✖",
    "unknown": "?",
}


@dataclass(frozen=True)
class Verdict:
    """What may be said of a run.

    Attributes:
        state: corrupt only by an exact comparison; suspect by a statistic, an open incident
            without proof or a checkpoint held back; clean when everything recorded could be
            read and nothing was found; else unknown.
        headline: the state in a sentence.
        reasons: what it rests on, a sentence each.
    """

    state: State
    headline: str
    reasons: tuple[str, ...] = ()


def judge(
    covered: Coverage,
    incidents: Sequence[Incident],
    checkpoints: Sequence[Checkpoint],
    results: Sequence[SessionResult],
) -> Verdict:
    """The verdict on a run as it is now."""
    proof = _proof(covered, incidents, checkpoints, results)
    doubts = _doubts(covered, incidents, checkpoints, results)
    if proof:
        found = "an exact comparison found a change."
        if len(proof) == 1 and _of_batches_alone(results):
            # what the model and its device computed is what they were given
            found = "a step was trained on another batch than its replay (data or software)."
        return Verdict("corrupt", f"Corrupt: {found}", (*proof, *doubts))
    if doubts:
        headline = "Suspect: nothing is proven."
        return Verdict("suspect", headline, (*doubts, *_gaps(covered)))
    if covered.steps == 0:
        text = "Nothing to judge: no step is recorded yet."
        return Verdict("unknown", text, _gaps(covered))
    gaps = _gaps(covered)
    steps = f"{count(covered.steps, 'step')} recorded ({span_text(covered.first, covered.newest)})"
    if gaps:
        text = f"Unknown: no finding in {steps}, but a part of the record is missing."
        return Verdict("unknown", text, gaps)
    text = f"Clean so far: no check found anything in {steps}."
    return Verdict("clean", text, (*_part(covered), *_lost(covered)))


def _proof(
    covered: Coverage,
    incidents: Sequence[Incident],
    checkpoints: Sequence[Checkpoint],
    results: Sequence[SessionResult],
) -> list[str]:
    proven = [incident for incident in incidents if incident.proven]
    lines = [_first(incident) for incident in proven[:1]]
    if covered.proven and not proven:
        lines.append(f"{count(covered.proven, 'alert')} from an exact comparison.")
    corrupt = [checkpoint for checkpoint in checkpoints if checkpoint.status == "corrupt"]
    if corrupt:
        lines.append(
            f"The checkpoint of step {corrupt[0].step:,} is corrupt"
            + (f": {corrupt[0].reason}." if corrupt[0].reason else ".")
        )
    lines += [
        f"sdc-bisect session {result.session}: {result.sentence}"
        for result in [r for r in results if r.accuses and r.proven][-1:]
    ]
    return lines


def _of_batches_alone(results: Sequence[SessionResult]) -> bool:
    proven = [result for result in results if result.accuses and result.proven]
    return bool(proven) and all(result.kind == BATCH for result in proven)


def _first(incident: Incident) -> str:
    text = str(incident.evidence.get("first") or f"step {incident.opened}: proven")
    return text[:1].upper() + text[1:]


def _doubts(
    covered: Coverage,
    incidents: Sequence[Incident],
    checkpoints: Sequence[Checkpoint],
    results: Sequence[SessionResult],
) -> list[str]:
    lines = []
    if covered.suspected:
        lines.append(
            f"{count(covered.suspected, 'alert')} from statistics, "
            "which suspect and do not convict."
        )
    unproven = [x for x in incidents if x.closed is None and not x.proven]
    if unproven:
        lines.append(f"The incident opened at step {unproven[0].opened:,} is still open.")
    held = [checkpoint for checkpoint in checkpoints if checkpoint.status == "suspect"]
    if held:
        lines.append(
            f"{count(len(held), 'checkpoint')} {_how_suspect(held)}, "
            f"the first of step {held[0].step:,}."
        )
    if covered.shadow_unequal:
        lines.append(
            f"{count(covered.shadow_unequal, 'shadow pass', 'shadow passes')} of "
            f"{covered.shadow_passes:,} did not repeat bit for bit."
        )
    lines += [
        f"sdc-bisect session {result.session}: {result.sentence}"
        for result in [r for r in results if r.accuses and not r.proven][-1:]
    ]
    return lines


def _how_suspect(held: Sequence[Checkpoint]) -> str:
    proven = sum(one.convicted for one in held)
    if not proven:
        return "held back as suspect"
    return "suspect by a proof" if proven == len(held) else "suspect, some by a proof"


def _gaps(covered: Coverage) -> tuple[str, ...]:
    lines = []
    if covered.damaged:
        files = count(len(covered.damaged), "file")
        lines.append(f"{files} of the trace could not be opened; alerts may have been in there.")
    if covered.steps and covered.ranks < covered.world_size:
        lines.append(f"Only {covered.ranks} of {covered.world_size} ranks have recorded steps.")
    return tuple(lines)


def _part(covered: Coverage) -> tuple[str, ...]:
    if covered.watched is None or covered.watched == 1:
        return ()
    share = f"{percent(covered.watched)} of the state's transitions from step to step were compared"
    return (f"{share}; sdc-bisect verify replays and compares every step.",)


def _lost(covered: Coverage) -> tuple[str, ...]:
    if covered.first is None or covered.newest is None:
        return ()
    lost = covered.newest - covered.first + 1 - covered.steps
    return (f"{count(lost, 'step')} in between left no record.",) if lost else ()
