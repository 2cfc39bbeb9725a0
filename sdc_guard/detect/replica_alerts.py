"""What is said of replicas that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .alert import Alert, Severity
from .replica_values import Compared
from .replicas import How, Part, State

DETECTOR: Final = "replica_digest"
EQUAL: Final = "replicas equal"  # kind of the event of a comparison in which nothing differed
_MOST_NAMES: Final = 20

_UNSYNCHRONISED: Final = (
    "DistributedDataParallel is bypassed, a module is not used in its forward, or seeds differ"
)


@dataclass(frozen=True)
class Report:
    """A finding as the rank that reports it gets it.

    Attributes:
        step: of the record.
        state, how, ranks, odd: as of the finding.
        parts: those that differ.
        candidate: index in the whole tensor of the one element that explains the first part's
            digests; None where no single one does.
        values: what the values of the first part say; None where they could not be compared.
        pair: the ranks whose values were compared: one that is not suspected, if that is known,
            and one that is.
    """

    step: int
    state: State
    how: How
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    parts: tuple[Part, ...]
    candidate: int | None
    values: Compared | None
    pair: tuple[int, int]

    @property
    def reporter(self) -> int:
        """The rank that differs, or the first one where that is not known."""
        return self.odd[0] if self.odd else self.ranks[0]

    @property
    def sort(self) -> str:
        """What it is: in sync before or not, and what the values say."""
        if self.how in ("input", "loss"):
            return self.how
        if self.state != "out":
            return {"never": "never in sync", "apart": "no longer in sync", "own": "own"}[
                self.state
            ]
        return "unclassified" if self.values is None else self.values.sort


def replica_alert(report: Report, names: Mapping[int, str]) -> Alert:
    """The alert for what one comparison found of some ranks.

    Proven is that bits changed that were the same before. What can come from software alone is
    suspect.

    Args:
        report: the finding.
        names: of the layers.
    """
    part = report.parts[0]
    layer = part.layer if part.layer >= 0 else None
    software = report.sort in ("never in sync", "no longer in sync", "drift")
    severity: Severity = "suspect" if software or report.how == "loss" else "proven"
    detail: dict[str, Any] = {
        "text": text_of(report, names),
        "kind": part.kind,
        "class": report.sort,
        "ranks": list(report.ranks),
        "odd": list(report.odd),
        "culprit": report.odd[0] if len(report.odd) == 1 and not software else None,
        "verdict": "data or software" if software else "undetermined",
        "count": len(report.parts),
        "tensors": [_named(other, names) for other in report.parts[:_MOST_NAMES]],
        **_location(report),
    }
    name = names.get(part.layer, "")
    return Alert(
        report.step, DETECTOR, layer, name, float(len(report.parts)), 0.0, severity, detail
    )


def text_of(report: Report, names: Mapping[int, str]) -> str:
    """One sentence about it."""
    what, differ = _named(report.parts[0], names), "differs"
    if len(report.parts) > 1:
        what, differ = f"{what} and {len(report.parts) - 1} more", "differ"
    others = [rank for rank in report.ranks if rank not in report.odd]
    if report.how == "input":
        who = _ranks(report.odd) if report.odd else f"between {_ranks(report.ranks)}"
        return f"input differs {'on ' if report.odd else ''}{who}: the pinned batch was the same"
    if report.state == "never":
        return (
            f"replicas were never in sync since the first record: {what} {differ} between "
            f"{_ranks(report.ranks)}; {_UNSYNCHRONISED}"
        )
    if report.state == "own":
        return (
            f"{what}: the same layer on {_ranks(report.ranks)}, never in sync since the first "
            "record; nothing declares replicas, so it is taken for each rank's own"
        )
    if report.state == "apart":
        return f"{what}: replicas were in sync, and now no two of {_ranks(report.ranks)} are"
    if report.sort == "drift":
        who = f"{_ranks(report.odd)} from {_ranks(others)}" if report.odd else _ranks(report.ranks)
        return f"numerical drift of {who} in {what}{_where(report)}"
    if report.how == "loss":
        who = f"on {_ranks(report.odd)}" if report.odd else f"between {_ranks(report.ranks)}"
        return f"same weights and input, and another shadow loss {who}"
    if report.odd:
        return f"{what} {differ} on {_ranks(report.odd)} from {_ranks(others)}{_where(report)}"
    if len(report.ranks) == 2:
        one, other = report.ranks
        return (
            f"undetermined: rank {one} and rank {other} differ in {what}, "
            f"which is right is not known{_where(report)}"
        )
    return (
        f"undetermined: {_ranks(report.ranks)} differ in {what}, "
        f"and no majority of them agrees{_where(report)}"
    )


def _where(report: Report) -> str:
    found = report.values
    if found is None:
        return "" if report.candidate is None else f" (element {report.candidate}, if it is one)"
    if found.differing > 1:
        return (
            f" ({found.differing} of {found.of} elements differ, "
            f"by {found.largest:.2g} of their size at most)"
        )
    good, bad = report.pair
    return (
        f" (element {_index(report, found)}, bits {found.bits}: 0x{found.one:x} on rank {good}, "
        f"0x{found.other:x} on rank {bad})"
    )


def _location(report: Report) -> dict[str, Any]:
    found = report.values
    if found is None:
        return {} if report.candidate is None else {"candidate": report.candidate}
    detail: dict[str, Any] = {
        "differing": found.differing,
        "of": found.of,
        "largest": f"{found.largest:.3g}",  # text: it may be infinite
    }
    if found.differing > 1:
        return detail
    sides = (f"0x{found.one:x}", f"0x{found.other:x}")
    detail |= {"index": _index(report, found), "bits": found.bits}
    if report.odd:
        return detail | {"before": sides[0], "after": sides[1]}
    return detail | {"values": dict(zip(map(str, report.pair), sides, strict=True))}


def _index(report: Report, found: Compared) -> int:
    """In the whole tensor; a single element that was handed over by itself is the candidate."""
    if found.of == 1 and report.candidate is not None:
        return report.candidate
    return found.index + (report.parts[0].offset or 0)


def _named(part: Part, names: Mapping[int, str]) -> str:
    if part.layer < 0:
        return part.kind
    return f"{part.kind} of {names.get(part.layer, f'layer {part.layer}')}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks))}"
