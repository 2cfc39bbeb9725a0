"""One comparison of replicas, in a thread of its own: as many rounds as it takes.

1. Each rank gives one number for each unit that it holds. In sound training that is all.
2. Where they differ, the ranks concerned give the digest of each tensor.
3. Where that shows a tensor that differs, and was alike before, two of its ranks compare the
   values of a step that is soon to end: those of the record's own step are gone.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...detect.replica_alerts import Report
from ...detect.replicas import Finding, How, ReplicaJudge
from ...digest import Digest, solve_single
from ...digest.reference import MASK64
from ..across_ranks import PATIENCE, Exchange
from .asked_values import AskedValues, Wanted, patience_until
from .messages import (
    PASSED,
    Record,
    folds_of,
    read_folds,
    read_report,
    read_rows,
    report_text,
    rows_of,
)
from .value_rounds import compare_values

_STATE: Final = ("declared", "assumed")  # units of the model's and the optimizer's state
_MOST_CLASSIFIED: Final = 4  # findings of one comparison
_WIDTHS: Final = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}


@dataclass
class Outcome:
    """What came of one comparison.

    Attributes:
        step: of the record.
        reports: all of them on rank 0, on others their own.
        silent: ranks that gave nothing; on other ranks rank 0, if there was no answer.
        alone: ids of units of the state that no other rank holds.
        shared: whether any unit of the state is held by more than one rank; None where that is
            not known.
        equal: whether every rank was heard and what several of them hold of the state is the same
            on each, but for what never was; rank 0 knows.
    """

    step: int
    reports: list[Report] = field(default_factory=list)
    silent: frozenset[int] = frozenset()
    alone: frozenset[str] = frozenset()
    shared: bool | None = None
    equal: bool = False


class Comparison:
    """Compares one record after the other; rank 0 judges.

    Args:
        rank: of this process.
        world: number of ranks.
        asked: gets values from the thread of the training.

    Attributes:
        awaited: step whose values are waited for; None for none.
    """

    def __init__(self, rank: int, world: int, asked: AskedValues) -> None:
        self._rank, self._world, self._asked = rank, world, asked
        self._judge = ReplicaJudge()
        self._units: set[str] = set()
        self.awaited: int | None = None

    def __call__(self, exchange: Exchange, record: Record) -> Outcome:
        """Compare this rank's record with those of the others, which do the same."""
        outcome, leads = Outcome(record.step), exchange.leads
        said = _told(
            exchange.round(
                f"{record.step}/folds", folds_of(record), range(self._world), self._weigh
            )
        )
        if leads or not exchange.over:  # at the end of the training rank 0 knows who is missing
            outcome.silent = frozenset(exchange.silent)
        if said is None:
            return outcome
        outcome.alone, outcome.shared = frozenset(said["alone"]), said["shared"]
        outcome.equal = said["shared"] is True and not said["rows"]
        mine = rows_of(record, set(said["rows"]))
        if not said["rows"] or (mine is None and not leads):
            return outcome

        def answer(given: dict[int, bytes]) -> bytes:
            return self._judged(record.step, given, set(said["members"]))

        found = _told(exchange.round(f"{record.step}/rows", mine, said["members"], answer))
        if found is None:
            return outcome
        outcome.equal = said["shared"] is True and not found["apart"]
        reports = [read_report(one) for one in found["reports"]]
        outcome.reports = [
            one
            for one in self._classified(exchange, reports, found["values"])
            if leads or one.reporter == self._rank
        ]
        return outcome

    def _weigh(self, given: dict[int, bytes]) -> bytes:
        """Which units differ, and who holds them."""
        held: dict[str, tuple[How, dict[int, bytes]]] = {}
        for rank, content in given.items():
            for name, (how, value) in read_folds(content).items():
                held.setdefault(name, (how, {}))[1][rank] = value
        differ: list[str] = []
        members: set[int] = set()
        for name, (how, values) in held.items():
            if len(set(values.values())) > 1:
                differ.append(name)
                members.update(values)
            elif len(values) > 1:
                self._judge.alike(name, how, tuple(sorted(values)), next(iter(values.values())))
        whole = len(given) == self._world and PASSED not in given.values()
        new = not held.keys() <= self._units
        self._units.update(held if whole else ())
        state = {name: values for name, (how, values) in held.items() if how in _STATE}
        alone = [name for name, values in state.items() if len(values) == 1]
        return json.dumps(
            {
                "rows": differ,
                "members": sorted(members),
                "alone": alone if whole and new else [],
                "shared": len(alone) < len(state) if whole and state else None,
            }
        ).encode()

    def _judged(self, step: int, given: dict[int, bytes], members: set[int]) -> bytes:
        """The findings, and whose values would tell more of the first."""
        units: dict[str, Any] = {}
        for rank, content in given.items():
            for unit, rows in read_rows(content):
                units.setdefault(unit.id, (unit, {}))[1][rank] = rows
        found: list[Finding] = []
        self._judge.apart = not given.keys() >= members  # a rank that is not heard may be
        for unit, by_rank in units.values():
            if len(by_rank) > 1:
                found += self._judge.judge(step, unit, by_rank)
        reports = [_report(finding) for finding in self._judge.explained(found)]
        reports.sort(key=lambda one: not _to_classify(one))
        number = min(sum(map(_to_classify, reports)), _MOST_CLASSIFIED)
        # as far ahead as it took to come here, twice, because other ranks may be behind
        ahead = 2 * max(self._asked.step - step, 0) + 2
        values = {"number": number, "step": self._asked.step + ahead}
        told = {
            "reports": [report_text(one) for one in reports],
            "values": values,
            "apart": self._judge.apart,
        }
        return json.dumps(told).encode()

    def _classified(
        self, exchange: Exchange, reports: list[Report], values: dict[str, int]
    ) -> list[Report]:
        """The reports, the first `number` of them with what the values of `step` say."""
        first, rest = reports[: values["number"]], reports[values["number"] :]
        mine = [place for place, one in enumerate(first) if self._rank in one.pair]
        wanted = [_wanted(first[place]) for place in mine]
        patience = patience_until(time.monotonic() + PATIENCE, exchange.deadline)
        self.awaited = values["step"] if first else None
        got = self._asked.get(values["step"], wanted, patience) if mine else []
        own = dict(zip(mine, got, strict=True))
        for place, one in enumerate(first):
            if place in own or exchange.leads:
                name = f"{one.step}/{place}"
                dtype = one.parts[0].dtype
                found = compare_values(exchange, name, one.pair, own.get(place), dtype)
                first[place] = replace(one, values=found)
        self.awaited = None
        return first + rest


def _told(answer: bytes | None) -> Any:
    return None if answer is None else json.loads(answer)


def _to_classify(report: Report) -> bool:
    known = report.parts[0].dtype in _WIDTHS
    return report.state == "out" and report.how in _STATE and known


def _wanted(report: Report) -> Wanted:
    part = report.parts[0]
    index = None if report.candidate is None else report.candidate - (part.offset or 0)
    return (part.kind, part.layer), index


def _report(finding: Finding) -> Report:
    return Report(
        step=finding.step,
        state=finding.state,
        how=finding.how,
        ranks=finding.ranks,
        odd=finding.odd,
        parts=finding.parts,
        candidate=_candidate(finding),
        values=None,
        pair=finding.pair,
    )


def _candidate(finding: Finding) -> int | None:
    """The one element that explains the digests of the first part."""
    part = finding.parts[0]
    if part.dtype not in _WIDTHS or part.offset is None:
        return None
    good, bad = (_digest(finding.rows[rank].tolist()) for rank in finding.pair)
    whole = part.offset + part.numel
    solved = solve_single(good, bad, numel=whole, width=_WIDTHS[part.dtype])
    return solved[0] if solved is not None and solved[0] >= part.offset else None


def _digest(row: list[int]) -> Digest:
    return Digest(*(value & MASK64 for value in row))
