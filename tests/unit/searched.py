"""Archives that are a list of verdicts, and what the search says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forensics.bracket import find_bracket
from forensics.checkpoint import Checkpoint
from forensics.executors.executor import Executor
from forensics.oracles.judgement import Judgement
from forensics.result import Result
from forensics.search import Verdict
from forensics.search.asked import Asked

OF: Mapping[str, Verdict] = {"g": "clean", "b": "corrupt", "u": "untestable"}


@dataclass
class Table:
    """Judges by a table from step to verdict, and keeps which steps it was asked."""

    verdicts: Mapping[int, Verdict]
    proves: bool = False
    persists: bool = False
    concurrent: bool = True
    cost: float | None = None
    name: str = "table"
    rotten: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        self.asked.append(checkpoint.step)
        verdict = self.verdicts[checkpoint.step]
        return Judgement(verdict, f"is {verdict}", stored_bytes=checkpoint.step in self.rotten)


def checkpoints(steps: Sequence[int]) -> list[Checkpoint]:
    return [Checkpoint(step, Path(f"step-{step}"), "torch", "untested") for step in steps]


def table(pattern: str, every: int = 100, **traits: bool) -> Table:
    """Of a pattern of g(ood), b(ad), u(ntestable): steps every, 2 · every, ..."""
    return Table({(i + 1) * every: OF[one] for i, one in enumerate(pattern)}, **traits)


def searched(
    judge: Table,
    asked: Asked | None = None,
    executor: Executor | None = None,
    confirm: Table | None = None,
    told: list[str] | None = None,
) -> Result:
    """The result of a search with this judge, over the steps that it knows."""
    tell = (lambda _: None) if told is None else told.append
    candidates = checkpoints(list(judge.verdicts))
    return find_bracket(candidates, judge, None, tell, asked, executor, confirm)
