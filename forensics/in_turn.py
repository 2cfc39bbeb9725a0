"""Two judges in one search: a cheap one first, and then one that costs or claims more.

Each has a search of its own: what the first one says is another question's answer, and counts no
more once the second one begins. The session keeps that it was asked, and what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sdc_guard.errors import ArchiveIncomplete, ArchiveUnreachable

from .bracket import find_bracket_of
from .executors.executor import Executor
from .oracles.judged_before import AmongOthers
from .oracles.judgement import Oracle
from .result import Result
from .search.asked import Asked
from .sessions.live import Live
from .sessions.of_run import Search
from .sessions.standing import Standing
from .sessions.state import Stage, State

Tell = Callable[[str], None]
INTEGRITY: Final = "integrity"


@dataclass(frozen=True)
class InTurn:
    """A search with its session.

    Attributes:
        search: what was asked for.
        live: its session; None where none can be kept.
        part: what was known of all checkpoints when it began.
        tell: called with a line per judging.
    """

    search: Search
    live: Live | None
    part: Standing
    tell: Tell

    def judged(
        self,
        judge: Oracle,
        executor: Executor,
        first: tuple[int | None, ...] = (),
        of_bytes: bool = False,
    ) -> Result:
        """The answer by one judge and by all that the session knows.

        Args:
            judge: of what is left.
            executor: of the judgings.
            first: steps of checkpoints to begin with.
            of_bytes: whether it looks at stored bytes alone, and another judges the state.

        Raises:
            As `find_bracket_of`.
        """
        part = self.part if self.live is None else self.search.standing_of(self.live.state)
        part = part.of_bytes() if of_bytes else part
        return self._searched(part, judge, executor, first)

    def before(self, judge: Oracle, executor: Executor) -> Stage | Result:
        """What the first judge comes to by itself: an answer, or that it has none.

        Raises:
            As `find_bracket_of`; of ArchiveIncomplete only ArchiveUnreachable.
        """
        own = self.part
        if self.live is not None:
            state = self.live.state
            if (known := state.stage(judge.name)) is not None:
                return known
            own = self.search.standing_of(state.only(judge.name))
        if judge.name == INTEGRITY:
            own = own.of_bytes()
        try:
            result = self._searched(own, judge, executor, ())
        except ArchiveUnreachable:
            raise  # that a store is down says nothing of what it holds
        except ArchiveIncomplete as error:
            return Stage(judge.name, said=(f"not proven: {error.what.partition(': ')[2]}",))
        return result

    def over(self, stage: Stage) -> Stage:
        """The first judge has had its say; its judgings count no more."""
        if self.live is not None and self.live.state.stage(stage.over) is None:
            self.live.stage(stage)
        return stage

    def said_by(self, judge: Oracle) -> bool:
        """Whether this one has judged already, or had its say."""
        if self.live is None:
            return False
        state = self.live.state
        return state.stage(judge.name) is not None or any(
            entry.by == judge.name for entry in state.entries
        )

    def others_judged(self, *names: str) -> bool:
        """Whether somebody else than judges of these names has judged in this session."""
        entries = () if self.live is None else self.live.state.entries
        return any(x.judgement is not None and x.by not in names for x in entries)

    def of_state(self, judge: Oracle, executor: Executor, asked: Asked) -> Result:
        """What a judge of the state and all others but the checksums say; nothing is kept of it.

        What was said of a checkpoint that is skipped counts no more.

        Args:
            judge: of what is left.
            executor: of the judgings.
            asked: the search's options, with what is to be skipped.

        Raises:
            As `find_bracket_of`.
        """
        state = State("", asked) if self.live is None else replace(self.live.state, asked=asked)
        entries = (x for x in state.entries if x.by != INTEGRITY and x.step not in asked.skip)
        own = self.search.standing_of(replace(state, entries=tuple(entries)))
        oracle = AmongOthers(judge, [by for _, _, by in own.known])
        return find_bracket_of(own.part, own.known, oracle, None, self.tell, asked, executor)

    def _searched(
        self, part: Standing, judge: Oracle, executor: Executor, first: tuple[int | None, ...]
    ) -> Result:
        if self.live is not None:
            self.live.by = judge.name
        steps = [one.step for one in part.part.candidates]
        places = [steps.index(step) for step in first if step in steps]
        oracle = AmongOthers(judge, [by for _, _, by in part.known])
        return find_bracket_of(
            part.part, part.known, oracle, self.live, self.tell, part.asked, executor, first=places
        )


def confirmed(
    turns: InTurn, cheap: Oracle, near: Executor, exact: Oracle, executor: Executor
) -> Result:
    """The cheap judge's bracket, which the exact one judges anew, and goes on if it disagrees.

    Args:
        turns: the search.
        cheap: bisects.
        near: carries its judgings out.
        exact: judges both ends of the bracket; the answer rests on what it says alone.
        executor: carries those out.
    """
    found = turns.before(cheap, near)
    if isinstance(found, Result):
        low, high = found.last_clean, found.first_corrupt
        said = f"{cheap.name} found nothing corrupt"
        if high is not None:
            said = f"{cheap.name} found ({'start' if low is None else low}, {high}]"
        found = Stage(cheap.name, low, high, (said,))
    stage = turns.over(found)
    turns.tell(f"{'; '.join(stage.said)}: now by {exact.name}")
    first = () if stage.high is None else (stage.high, stage.low)
    result = turns.judged(exact, executor, first)
    same = (result.last_clean, result.first_corrupt) == (stage.low, stage.high)
    agrees = f"{exact.name} {'agrees' if same else 'says otherwise'}"
    if stage.high is None:
        agrees = f"judged by {exact.name} alone"
    return replace(result, evidence=(*result.evidence, f"{'; '.join(stage.said)}; {agrees}"))
