"""What is to be known within five seconds: the verdict, four numbers, and where to go on."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.watched import percent

from . import answer_box, navigation, records, sessions
from .verdict import Verdict
from .wording import count, plain


def numbers(
    covered: records.Coverage,
    incidents: Sequence[records.Incident],
    kept: Sequence[records.Checkpoint],
    results: Sequence[sessions.SessionResult],
) -> None:
    """First bad step, where to resume, the newest step, and how much was compared."""
    bad = sessions.first_bad(incidents, results)
    resume = records.resumable(kept)
    shown = {
        "First bad step": ("none found" if bad is None else f"{bad:,}", _whence(bad, results)),
        "Last clean checkpoint": (
            "none" if resume is None else f"{resume.step:,}",
            "to resume from" if resume else "before the first bad one",
        ),
        "Newest step": (
            "–" if covered.newest is None else f"{covered.newest:,}",
            f"{count(covered.steps, 'step')} recorded",
        ),
        "State compared": (compared_text(covered), _counted_text(covered)),
    }
    answer_box.figures(shown)


def _counted_text(covered: records.Coverage) -> str:
    if not covered.is_counted:
        return "the digests are being read"
    upto = f", to step {covered.counted_to:,}" if covered.lags else ", exactly"
    return count(covered.digests, "digest") + upto


def compared_text(covered: records.Coverage) -> str:
    """The share of the steps whose state was compared, or of the state under a digest budget."""
    if not covered.is_counted:
        return "…"
    if covered.watched is not None:
        return percent(covered.watched)
    if not covered.digest_steps:
        return "none"
    # before the first step there is nothing to compare it with
    steps = covered.steps
    if covered.lags and covered.newest is not None and covered.counted_to is not None:
        steps -= covered.newest - covered.counted_to  # recorded since
    return percent(min(covered.digest_steps / max(steps - 1, 1), 1.0))


def _whence(bad: int | None, results: Sequence[sessions.SessionResult]) -> str:
    found = sessions.newest_bracket(results)
    if found is not None and bad == found.first_corrupt:
        return f"located by session {plain(found.session)}"
    return "by the checks below" if bad is None else "when the incident opened"


def next_steps(bad: int | None, layer: str, verdict: Verdict) -> None:
    """Links to the pages that answer the next questions, about the same step and layer."""
    if verdict.state in ("suspect", "corrupt"):
        navigation.onward("incidents", bad, **({"layer": layer} if layer else {}))
