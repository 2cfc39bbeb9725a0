"""Replicas against each other: who differs, and whether they were ever alike.

What several ranks hold alike has the same digests on each. A majority names those that differ
from it; two ranks, or a tie, only show that they differ. A difference that was there at the first
comparison is no sign of a fault in hardware: nothing shows that they were ever in sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

How = Literal["declared", "assumed", "input", "loss"]
State = Literal["out", "apart", "never", "own"]

INPUT: Final = "shadow batch"
LOSS: Final = "shadow loss"
_ORDER: Final = {"input": 0, "declared": 1, "assumed": 1, "loss": 2}


@dataclass(frozen=True)
class Part:
    """A tensor, or a rank's part of it.

    Attributes:
        kind: of tensor, as in the table digests; INPUT or LOSS for those.
        layer: number of the layer; -1 for none.
        numel: elements of this part.
        dtype: as torch names it, without "torch.".
        offset: index of the part's first element in the whole tensor; None for a part that is not
            one run of elements.
    """

    kind: str
    layer: int
    numel: int
    dtype: str
    offset: int | None


@dataclass(frozen=True)
class Unit:
    """Parts that the same ranks hold.

    Attributes:
        id: the same on ranks that hold the same parts, and only there.
        how: why they should be alike: "declared" by DistributedDataParallel or by a distributed
            tensor's placement; "assumed", because layer and part are the same; the batch or the
            loss of the shadow pass.
        parts: in an order that is the same on each rank.
    """

    id: str
    how: How
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Finding:
    """Parts of which the same ranks differ in the same way.

    Attributes:
        step: of the record.
        state: "out": they were alike before, and these ranks no longer are; "apart": three or
            more were alike, and now no two are; "never": they are declared to be alike and were
            not at the first comparison, nor since; "own": the same, and nothing declares it.
        how: see Unit.
        parts: those that differ.
        ranks: that were compared.
        odd: ranks that were alike and differ from the majority; empty without one.
        rows: the digests of the first part by rank, int64 (3,).
    """

    step: int
    state: State
    how: How
    parts: tuple[Part, ...]
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    rows: Mapping[int, NDArray[np.int64]]

    def with_parts(self, parts: tuple[Part, ...]) -> Finding:
        """The same with more parts."""
        return replace(self, parts=self.parts + parts)

    @property
    def pair(self) -> tuple[int, int]:
        """Two ranks that differ: one of the majority, if there is one, and one that is not."""
        if self.odd:
            return next(rank for rank in self.ranks if rank not in self.odd), self.odd[0]
        first = self.ranks[0]
        differ = (r for r in self.ranks if (self.rows[r] != self.rows[first]).any())
        return first, next(differ)


def classes(values: Mapping[int, bytes]) -> list[tuple[int, ...]]:
    """Ranks by equal values, the most numerous class first."""
    found: dict[bytes, list[int]] = {}
    for rank in sorted(values):
        found.setdefault(values[rank], []).append(rank)
    return sorted((tuple(ranks) for ranks in found.values()), key=lambda ranks: -len(ranks))


def majority(values: Mapping[int, bytes]) -> tuple[int, ...]:
    """The ranks that have one value and are more than half of all; empty if none are."""
    most = classes(values)[0] if values else ()
    return most if 2 * len(most) > len(values) else ()


@dataclass
class _Memory:
    """How a part was until now."""

    value: bytes = b""
    together: frozenset[int] = frozenset()
    proven: frozenset[int] = frozenset()  # ranks that were alike, and not by chance
    told: frozenset[int] = frozenset()

    def agreed(self, value: bytes, ranks: frozenset[int], *, at_once: bool) -> None:
        """All that were compared, two or more, have the same value.

        Where nothing declares it, they must have changed alike: values of ranks' own may start
        from the same seed.
        """
        if at_once:
            self.proven |= ranks
        elif self.value and value != self.value:
            self.proven |= ranks & self.together
        self.value, self.together = value, ranks


@dataclass
class ReplicaJudge:
    """Judges one comparison after the other, and remembers how the replicas stood.

    A difference is told once, and again when further ranks differ.

    Attributes:
        apart: whether, in the units judged since this was last set to False, a part of the state
            differed that is declared to be the same or was before; also where that was told.
    """

    apart: bool = False
    _units: dict[str, _Memory] = field(default_factory=dict)
    _parts: dict[tuple[str, Part], _Memory] = field(default_factory=dict)
    _never: set[str] = field(default_factory=set)  # units of which some part was never in sync
    _out: set[int] = field(default_factory=set)

    def alike(self, unit: str, how: How, ranks: tuple[int, ...], value: bytes) -> None:
        """All parts of a unit are the same on these ranks.

        Args:
            unit: its id.
            how: see Unit.
            ranks: two or more.
            value: of all its digests.
        """
        memory = self._units.setdefault(unit, _Memory())
        memory.agreed(value, frozenset(ranks), at_once=_at_once(how))

    def judge(self, step: int, unit: Unit, rows: Mapping[int, NDArray[np.int64]]) -> list[Finding]:
        """What is new in a unit of which some part differs.

        Args:
            step: of the record.
            unit: of which the digests come.
            rows: by rank, int64 (len(unit.parts), 3).
        """
        ranks = tuple(sorted(rows))
        before = self._units.get(unit.id, _Memory()).proven
        found: dict[tuple[State, tuple[int, ...]], list[int]] = {}
        alike: list[tuple[_Memory, bytes]] = []
        for place, part in enumerate(unit.parts):
            values = {rank: rows[rank][place].tobytes() for rank in ranks}
            memory = self._parts.setdefault((unit.id, part), _Memory())
            if len(set(values.values())) == 1:
                alike.append((memory, values[ranks[0]]))
                continue
            alike_before = _differing(values) <= memory.proven | before
            self.apart |= unit.how == "declared" or (unit.how == "assumed" and alike_before)
            new = _judge_part(memory, values, before, declared=_at_once(unit.how))
            if new is not None:
                found.setdefault(new, []).append(place)
        if any(state in ("never", "own") for state, _ in found):
            self._never.add(unit.id)
        # where other parts were never in sync, a small one may be alike by chance
        at_once = _at_once(unit.how) and unit.id not in self._never
        for memory, value in alike:
            memory.agreed(value, frozenset(ranks), at_once=at_once)
            memory.told = frozenset()
        findings = []
        for (state, odd), places in found.items():
            if state in ("out", "never") and unit.how != "loss":
                self._out.update(odd or ranks)
            parts = tuple(unit.parts[place] for place in places)
            first = {rank: rows[rank][places[0]] for rank in ranks}
            findings.append(Finding(step, state, unit.how, parts, ranks, odd, first))
        return findings

    def explained(self, findings: list[Finding]) -> list[Finding]:
        """The findings of one step, those about the same ranks as one.

        The input comes first, then the state. A loss that follows from what is known is left out.
        """
        joined: dict[object, Finding] = {}
        for finding in sorted(findings, key=lambda f: _ORDER[f.how]):
            what = finding.how if finding.how in ("input", "loss") else "state"
            same = (what, finding.state, finding.ranks, finding.odd)
            before = joined.get(same)
            joined[same] = finding if before is None else before.with_parts(finding.parts)
        known = self._out | {rank for f in findings if f.how != "loss" for rank in f.odd or f.ranks}
        return [
            finding
            for finding in joined.values()
            if finding.how != "loss" or not known.intersection(finding.odd or finding.ranks)
        ]


def _at_once(how: How) -> bool:
    return how in ("declared", "input")


def _differing(values: Mapping[int, bytes]) -> frozenset[int]:
    """The ranks not of a majority; all of them without one."""
    return frozenset(set(values) - set(majority(values))) or frozenset(values)


def _judge_part(
    memory: _Memory, values: dict[int, bytes], before: frozenset[int], *, declared: bool
) -> tuple[State, tuple[int, ...]] | None:
    """What is new of one part that differs: its state, and the ranks not of a majority."""
    differ = _differing(values)
    odd = tuple(rank for rank in values if rank in differ) if majority(values) else ()
    if differ <= memory.told:
        return None
    if not differ <= memory.proven | before:
        memory.told = frozenset(values)  # who agrees with whom means nothing then
        return ("never" if declared else "own"), ()
    memory.told |= differ
    apart = len(values) > 2 and len(set(values.values())) == len(values)
    return ("apart" if apart else "out"), odd
