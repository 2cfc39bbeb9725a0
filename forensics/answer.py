"""From a comparison of a run with its replay to an answer that claims no more than it shows."""

from __future__ import annotations

from dataclasses import dataclass

from sdc_guard.errors import EXIT_RANGE_ONLY

from .compare import Comparison, StepDifference
from .diagnose import Diagnosis, Known
from .locate import LocatedTensor
from .result import Result


@dataclass(frozen=True)
class Finding:
    """A difference that two replays agree on.

    Attributes:
        comparison: of the run with its replay, with a difference.
        known: how much of the state around the difference was compared.
        diagnosis: its class and what explains it.
        rung, why: the verdict of the replay ladder and its reason.
        confirmed: whether an inexact resume is excluded.
        tensors: what differs, located.
        more: how many tensors differ besides.
    """

    comparison: Comparison
    known: Known
    diagnosis: Diagnosis
    rung: str
    why: str
    confirmed: bool
    tensors: tuple[LocatedTensor, ...]
    more: int = 0


def equal_result(comparison: Comparison) -> Result:
    """The answer when nothing that is in both differs."""
    until, missing = comparison.last, comparison.missing
    clean = comparison.known_up_to(until + 1)
    if comparison.watched == 1:
        what = f"{comparison.steps} steps replayed, {comparison.tensors} tensors a step"
    else:
        what = f"{comparison.steps} steps replayed, losses and gradients of each, and"
        what = f"{what} {comparison.compared:,} of {comparison.possible:,} digests"
    evidence = [f"{what} equal the trace, bit for bit"]
    if missing:
        evidence.append(
            f"not compared: {len(missing)} steps from {missing[0]} to {missing[-1]}, "
            "whose record is incomplete"
        )
    elif clean < until:
        evidence.append(f"all {_state(comparison)} were compared last after step {clean}")
    elif comparison.watched < 1:
        evidence.append(f"after step {until} all {_state(comparison)} are equal")
    evidence.append(_compared(comparison))
    settled = not missing and clean == until
    return Result(
        command="verify",
        last_clean=missing[0] - 1 if missing else clean,
        first_corrupt=None,
        exact=settled,
        proven=settled,
        evidence=tuple(evidence),
        unsettled=EXIT_RANGE_ONLY if missing else None,
        watched=comparison.watched,
    )


def _state(comparison: Comparison) -> str:
    """What is digested of the state."""
    moments = any(kind.startswith("exp_avg") for kind in comparison.kinds)
    return "parameters and Adam's moments" if moments else "parameters"


def _compared(comparison: Comparison) -> str:
    """What the answer is about, and what not."""
    if "buffer" in comparison.kinds:
        return f"compared: {_state(comparison)}, and the model's buffers"
    return (
        f"compared: {_state(comparison)}; not the model's buffers, "
        "which Guard(digest_buffers=True) would record"
    )


def located_result(finding: Finding) -> Result:
    """The answer when a step differs: that step, or the range that the fault lies in."""
    comparison, found = finding.comparison, finding.comparison.difference
    assert found is not None
    gaps = [step for step in comparison.missing if step < found.step]
    exact = _is_exact(finding, found, gaps)
    evidence = [_before(finding, found, exact, gaps), finding.diagnosis.text, finding.why]
    rung = finding.rung
    if not finding.confirmed:
        rung = "undetermined"
        evidence.append("one checkpoint to replay from: an inexact resume is not excluded")
    if any(tensor.change for tensor in finding.tensors):
        evidence.append("element and bits reproduce the recorded 64-bit digest exactly")
    if finding.tensors and not finding.known.before:
        evidence.append("the tensors named are those of the recorded ones that differ")
    told = exact or finding.diagnosis.kind == "undetermined"
    return Result(
        command="verify",
        last_clean=found.step - 1 if exact else comparison.known_up_to(found.step),
        first_corrupt=found.step,
        exact=exact,
        proven=finding.confirmed and (exact or not gaps),
        tensors=finding.tensors,
        more_tensors=finding.more,
        kind=finding.diagnosis.kind if told else "unknown",
        verdict=rung,
        rank=found.ranks[0] if len(found.ranks) == 1 else None,
        evidence=tuple(evidence),
        watched=comparison.watched,
    )


def _is_exact(finding: Finding, found: StepDifference, gaps: list[int]) -> bool:
    """Whether the fault happened at the very step that is the first to differ.

    It did when the whole state was equal right before, or when the difference cannot be a
    consequence of anything before: another batch, or state that changed between two steps.
    """
    own = bool(found.batch or (found.before and finding.known.carried))
    return _came_equal(finding, found) or (own and not gaps)


def _came_equal(finding: Finding, found: StepDifference) -> bool:
    """Whether the whole state is known to have been equal when the step before had ended."""
    return finding.known.left or (finding.known.before and not found.before)


def _before(finding: Finding, found: StepDifference, exact: bool, gaps: list[int]) -> str:
    """What the steps before the difference show."""
    count = found.step - finding.comparison.first
    if not exact and gaps:
        return "the record of these steps is incomplete: the fault may lie before"
    if _came_equal(finding, found):
        return f"{_steps(count)} bit for bit"
    text = f"{_steps(count)} with the same losses and gradients"
    if exact:
        return text
    return f"{text}; the state was recorded in part, so the fault may lie before, unseen until then"


def _steps(count: int) -> str:
    return "1 step before it replays" if count == 1 else f"{count} steps before it replay"
