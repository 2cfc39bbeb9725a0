"""Ranks' gradients beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...detect.peer_alerts import peer_alert, reporter, steps_alert
from ...detect.step_signals import StepSignals
from ...ranks import Ranks
from ..across_ranks import Exchange, InBackground
from ..check import Check, Telling
from .messages import Measured, Share, Window, window_of
from .rounds import Outcome, PeerRounds

_EVENT: Final = "peers"
_BEHIND: Final = 4  # windows that wait: then this rank gives none for the time being
_NO_STORE: Final = (
    "ranks are not compared: torch.distributed was not initialised when the Guard was made"
)


class PeerCheck(Check):
    """Compares the measures of gradients between ranks.

    In the thread of the training the measures that the guard has anyway are put aside; everything
    else is done in the background, and what comes of it is told at the end of a later step. The
    first exchange is after the first step and compares the number of the step alone.

    Args:
        telling: takes what is found.
        names: gives the layers' names, by number.
        ranks: this process among them.
        every: steps that are compared together.
        budget: false incidents per step of a healthy run; None to find nothing but other steps.
    """

    def __init__(
        self,
        telling: Telling,
        names: Callable[[], Mapping[int, str]],
        ranks: Ranks,
        every: int,
        budget: float | None,
    ) -> None:
        self._telling, self._names, self._ranks, self._every = telling, names, ranks, every
        self._rounds = PeerRounds(ranks.world_size, budget)
        self._thread: InBackground[Outcome] = InBackground(ranks, "peers")
        self._parts: list[Measured] = []
        self._window: int | None = None  # the one that is being gathered
        self._step = self._count = 0
        self._judges = budget is not None
        self._said: set[str] = set()
        self._silent: frozenset[int] = frozenset()
        self._disagreed = False

    def measured(
        self,
        steps: Sequence[int],
        layers: NDArray[np.int32],
        numel: NDArray[np.int64],
        signals: StepSignals,
    ) -> None:
        """Put the measures of some steps aside, and give those of a window that is full."""
        if not (self._judges and self._thread.works):
            return
        first = 0
        while first < len(steps):
            number, last = steps[first] // self._every, first + 1
            while last < len(steps) and steps[last] // self._every == number:
                last += 1
            part = Measured(steps[first:last], layers, numel, signals.steps(first, last))
            self._gather(number, part)
            first = last

    def step_ended(self, step: int) -> None:
        """Begin, and tell what came of earlier exchanges."""
        self._step = step
        if self._window is None:
            if not self._thread.works:
                self._say(step, _NO_STORE)
            self._begin(step)
        outcomes = self._thread.results()
        if outcomes or self._thread.trouble is not None:
            self._tell(outcomes)

    def layers_changed(self) -> None:
        """Forget what was measured of the layers until now in this window."""
        self._parts.clear()

    def close(self) -> None:
        """Give what is left, and finish what was begun, for a short time at most."""
        if self._window is not None and self._parts:
            self._give()
        self._tell(self._thread.close())

    def _begin(self, step: int) -> None:
        if self._window is None:
            self._window = step // self._every
            self._do(window_of(step, (), Share(1, 1)))

    def _gather(self, number: int, part: Measured) -> None:
        self._begin(int(part.steps[0]))
        assert self._window is not None
        while self._window < number:
            self._give()
        if number == self._window:
            self._parts.append(part)
            if (part.steps[-1] + 1) % self._every == 0:
                self._give()

    def _give(self) -> None:
        """Give the window that was gathered; the next one begins."""
        assert self._window is not None
        number, parts = self._window, self._parts
        self._window, self._parts = number + 1, []
        if self._thread.waiting >= _BEHIND:
            self._do(None)
            return
        layers = len(parts[0].layers) if parts else 0
        share = Share.of(self._ranks.world_size, layers, self._every)
        if not share.whole and self._ranks.rank == 0:
            self._say(self._step, f"of so many ranks and layers {share} is compared")
        self._do(lambda: window_of(number * self._every, parts, share))

    def _do(self, window: Window | Callable[[], Window] | None) -> None:
        number, self._count = self._count, self._count + 1

        def job(exchange: Exchange) -> Outcome:
            # a window is made here: that takes longer than to put measures aside
            return self._rounds(exchange, number, window() if callable(window) else window)

        self._thread.do(job)

    def _tell(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._tell_silence(outcome.silent)
            self._tell_steps(outcome.begins)
            mine = [one for one in outcome.findings if reporter(one) == self._ranks.rank]
            if mine:
                names = self._names()
                self._telling.report([peer_alert(one, names) for one in mine])
            if outcome.more and self._ranks.rank == 0:
                line = f"{outcome.more} more streams were out of their limits in one window"
                self._telling.event(outcome.findings[0].step, _EVENT, line)
        if self._thread.left_out and self._thread.works:
            self._say(self._step, "exchanges are left out: the process group's store is too slow")
        trouble = self._thread.trouble
        if trouble is not None:
            line = (str(trouble).strip().splitlines() or [type(trouble).__name__])[0]
            self._say(self._step, f"ranks are no longer compared: {line}")

    def _tell_steps(self, begins: Mapping[int, int]) -> None:
        if begins and not self._disagreed and self._ranks.rank == 0:
            self._telling.report([steps_alert(self._step, begins)])
        self._disagreed = bool(begins)

    def _tell_silence(self, silent: frozenset[int]) -> None:
        new, self._silent = silent - self._silent, silent
        if new:
            who = ", ".join(map(str, sorted(new)))
            self._say(self._step, f"nothing to compare with came in time from rank {who}")

    def _say(self, step: int, line: str) -> None:
        """An event, once."""
        if line not in self._said:
            self._said.add(line)
            self._telling.event(step, _EVENT, line)
