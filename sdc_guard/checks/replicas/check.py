"""Replicas compared with each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...detect.carried import Key
from ...detect.replica_alerts import EQUAL, Report, replica_alert, text_of
from ...detect.replicas import Unit
from ...evidence import HostCopy
from ...ranks import Ranks
from ...signals.shadow import ShadowPass
from ...signals.state import NO_DIGESTS, CarriedState, digest_state
from ..across_ranks import InBackground
from ..check import Check, Telling
from .asked_values import AskedValues
from .messages import Record
from .rounds import Comparison, Outcome
from .shadow_units import shadow_units
from .units import Units

_EVENT = "replicas"
_BEHIND = 16  # records that wait: then no more digests are taken for the time being
_NO_STORE = (
    "replicas are not compared: torch.distributed was not initialised when the Guard was made"
)
_NOTHING = "nothing is held by more than one rank: there are no replicas to compare"


@dataclass(frozen=True)
class _Taken:
    """A record whose digests may be on their way from the device."""

    step: int
    units: list[tuple[Unit, list[Key]]]
    keys: tuple[Key, ...]
    rows: HostCopy
    shadow: list[tuple[Unit, HostCopy]]
    passed: bool = False

    def ready(self) -> bool:
        return self.rows.ready() and all(row.ready() for _, row in self.shadow)

    def record(self) -> Record:
        if self.passed:
            return Record(self.step, (), passed=True)
        rows = self.rows.array()
        place = {key: number for number, key in enumerate(self.keys)}
        units: list[tuple[Unit, NDArray[np.int64]]] = [
            (unit, rows[[place[key] for key in keys]]) for unit, keys in self.units
        ]
        units += [(unit, row.array().reshape(1, 3)) for unit, row in self.shadow]
        return Record(self.step, tuple(units))


def _passed(step: int) -> _Taken:
    """No digests: earlier ones wait. The other ranks have to hear of it, they would wait."""
    return _Taken(step, [], (), HostCopy(NO_DIGESTS.rows), [], passed=True)


class ReplicaCheck(Check):
    """Compares the digests of what several ranks hold alike.

    In the thread of the training the digests are taken; everything else is done in the background,
    and what comes of it is told at the end of a later step.

    Args:
        telling: takes what is found.
        model: as the script calls it: its wrappers declare which ranks are replicas.
        state: gives what is carried from step to step as it is now.
        ranks: this process among them.
        every: steps from one comparison to the next; the first is after the first step.
        shadow: whose pinned batch and loss are compared too.
    """

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        state: Callable[[], CarriedState],
        ranks: Ranks,
        every: int,
        shadow: ShadowPass | None = None,
    ) -> None:
        self._telling, self._model, self._state, self._every = telling, model, state, every
        self._ranks, self._shadow = ranks, shadow
        self._asked = AskedValues()
        self._comparison = Comparison(ranks.rank, ranks.world_size, self._asked)
        self._thread: InBackground[Outcome] = InBackground(ranks, "replicas")
        self._taken: deque[_Taken] = deque()
        self._units: tuple[tuple[Key, ...], Units] | None = None
        self._alone: set[str] = set()
        self._said: set[str] = set()
        self._silent: frozenset[int] = frozenset()
        self._first = True

    def step_ended(self, step: int) -> None:
        """Take a record at the cadence, and tell what came of earlier ones."""
        due, idle = self._first or step % self._every == 0, not self._thread.waiting
        if idle and not due and not self._taken:
            self._asked.step = step  # nothing is asked for while no job is done
            return
        self._asked.step_ended(step, self._tensor)
        if self._first and not self._thread.works:
            self._say(step, _NO_STORE)
        self._first = False
        try:
            if due and self._thread.works:
                behind = self._thread.waiting >= _BEHIND
                self._taken.append(_passed(step) if behind else self._take(step))
        except Exception:  # because the other ranks wait to hear of it, whatever it is
            self._taken.append(_passed(step))
            raise
        while self._taken and self._taken[0].ready():
            self._send(self._taken.popleft())
        self._tell(step, self._thread.results())

    def layers_changed(self) -> None:
        """Find out anew who holds what."""
        self._units = None

    def close(self) -> None:
        """Finish what was begun, for a short time at most."""
        for taken in self._taken:
            self._send(taken)
        self._taken.clear()
        self._tell(self._asked.step, self._thread.close())

    def _tensor(self, key: Key) -> torch.Tensor | None:
        return self._state().tensors([key]).get(key)

    def _take(self, step: int) -> _Taken:
        state = self._state()
        tensors = state.tensors()
        units = [
            (unit, keys)
            for unit, keys in self._units_of(state, tensors).all
            if unit.id not in self._alone
        ]
        compared = {key: tensors[key] for _, keys in units for key in keys}
        digests = digest_state(compared, state.offsets)
        return _Taken(step, units, digests.keys, HostCopy(digests.rows), shadow_units(self._shadow))

    def _units_of(self, state: CarriedState, tensors: Mapping[Key, torch.Tensor]) -> Units:
        keys = tuple(tensors)
        if self._units is None or self._units[0] != keys:
            self._units = keys, Units(self._model, state, tensors)
        return self._units[1]

    def _send(self, taken: _Taken) -> None:
        record = taken.record()
        self._thread.do(lambda exchange: self._comparison(exchange, record))

    def _tell(self, step: int, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._alone |= outcome.alone
            if self._ranks.rank == 0 and outcome.shared is False:
                self._say(outcome.step, _NOTHING)
            self._tell_silence(outcome)
            if self._ranks.rank == 0 and outcome.equal:
                self._telling.event(outcome.step, EQUAL, f"on all {self._ranks.world_size} ranks")
            for report in outcome.reports:
                self._tell_report(report)
        if self._thread.left_out and self._thread.works:
            self._say(step, "comparisons are left out: the process group's store is too slow")
        trouble = self._thread.trouble
        if trouble is not None:
            line = (str(trouble).strip().splitlines() or [type(trouble).__name__])[0]
            self._say(step, f"replicas are no longer compared: {line}")

    def _tell_report(self, report: Report) -> None:
        names = self._state().names
        own = report.state == "own"
        if own and (report.how != "assumed" or report.parts[0].kind == "buffer"):
            return  # each rank's own input, and statistics of its own batches, are usual
        if report.reporter == self._ranks.rank and not own:
            self._telling.report([replica_alert(report, names)])
        elif self._ranks.rank == 0:
            self._telling.event(report.step, _EVENT, text_of(report, names))

    def _tell_silence(self, outcome: Outcome) -> None:
        new = outcome.silent - self._silent
        self._silent = outcome.silent
        if new:
            who = ", ".join(map(str, sorted(new)))
            self._say(outcome.step, f"nothing to compare with came in time from rank {who}")

    def _say(self, step: int, line: str) -> None:
        """An event, once."""
        if line not in self._said:
            self._said.add(line)
            self._telling.event(step, _EVENT, line)
