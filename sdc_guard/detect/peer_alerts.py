"""What is said of ranks that are unlike the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .alert import Alert
from .peer_findings import PeerFinding, Statistic

STEPS: Final = "peer_steps"
_WHAT: Final[dict[Statistic, str]] = {
    "norm": "norm of the gradient",
    "peak": "largest element of the gradient relative to its norm",
    "zeros": "share of zeros in the gradient",
    "shift": "norm of the gradient, a lasting shift of",
}


def peer_alert(finding: PeerFinding, names: Mapping[int, str]) -> Alert:
    """The alert of a finding: a statistic, which suspects.

    Args:
        finding: with the run's number of the layer.
        names: of the layers.
    """
    layer = finding.layer
    detail: dict[str, Any] = {
        "text": _text(finding),
        "rank": finding.rank,
        "ranks": list(finding.ranks),
        "steps": finding.steps,
    }
    return Alert(
        finding.step,
        f"peer_{finding.kind}",
        layer,
        "" if layer is None else names.get(layer, f"layer {layer}"),
        finding.score,
        finding.threshold,
        "suspect",
        detail,
    )


def steps_alert(step: int, begins: Mapping[int, int]) -> Alert:
    """The alert for ranks that count other steps.

    Args:
        step: of this rank.
        begins: by rank, the first step of what it compares now.
    """
    by_step: dict[int, list[int]] = {}
    for rank, first in begins.items():
        by_step.setdefault(first, []).append(rank)
    said = "; ".join(
        f"{_ranks(ranks)} at {first}" for first, ranks in sorted(by_step.items(), reverse=True)
    )
    text = (
        f"ranks disagree on the step: {said}. They resumed from different checkpoints, or one of "
        "them began anew: stop, and start all from one checkpoint"
    )
    apart = float(max(begins.values()) - min(begins.values()))
    detail = {"text": text, "begins": {str(rank): first for rank, first in begins.items()}}
    return Alert(step, STEPS, None, "", apart, 0.0, "suspect", detail)


def reporter(finding: PeerFinding) -> int:
    """The rank that differs, or the first one where that is not known."""
    return finding.ranks[0] if finding.rank is None else finding.rank


def _text(finding: PeerFinding) -> str:
    more = f", in {finding.steps} of the steps compared" if finding.steps > 1 else ""
    if finding.rank is None:
        one, other = finding.ranks[0], finding.ranks[-1]
        what = "all layers" if finding.kind == "rank" else _WHAT[finding.kind]
        return (
            f"{what}: rank {one} and rank {other} differ by {finding.score:.3g} σ more than "
            f"before, which of them is at fault is not known{more}"
        )
    score = f"{finding.score:+.3g} σ from where it was beside {len(finding.ranks) - 1} other ranks"
    if finding.kind == "rank":
        return (
            f"all layers of rank {finding.rank}: its batch or its loss, not a tensor; their "
            f"gradients are {score}{more}"
        )
    return f"{_WHAT[finding.kind]} on rank {finding.rank} is {score}{more}"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
