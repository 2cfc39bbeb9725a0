"""A small computation whose answer is known, asked of the training's devices at a cadence."""

from __future__ import annotations

import socket
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ...detect.answers import Answer
from ...detect.known_answer import AnswerWatch
from ...evidence import HostCopy
from ...ranks import Ranks
from ...signals.device_names import device_id, word_for
from ...signals.probe import Probe, probes_of
from ...signals.probe_environment import built, in_force, key_of
from ...store.known_answers import RecordedAnswer
from ..check import Check, Telling
from .rank_round import RankRounds
from .run_answers import Lookup

_WAITING: Final = 16  # answers under way at most: a device that is stuck makes no memory grow
# environments remembered, and looked up at all: a script may go on changing settings
_ASKERS: Final = 16
_LOOKUP_SECONDS: Final = 10.0  # that closing waits for the file system


@dataclass
class _Asker:
    """One question to one device under one environment."""

    device: torch.device
    probe: Probe
    key: str
    environment: dict[str, Any]
    watch: AnswerWatch
    looked_up: bool = False


@dataclass(frozen=True)
class _Asked:
    """A question that was asked, and its answer on the way."""

    step: int
    asker: _Asker
    rows: HostCopy
    numbers: HostCopy

    def ready(self) -> bool:
        return self.rows.ready() and self.numbers.ready()


class KnownAnswer(Check):
    """Asks each of the model's devices at a cadence, and compares.

    Nothing waits for a device: an answer is judged at a later step, when it has arrived. The first
    answer that comes twice is this process's reference, and is compared with the one that the
    run's folder has for the same environment, or recorded there.

    Args:
        telling: takes what it finds.
        model: its parameters' devices are asked.
        ranks: this process among them.
        run: the run's folder.
        every: steps from one time to the next; the first is the first step.
    """

    def __init__(
        self,
        telling: Telling,
        model: torch.nn.Module,
        ranks: Ranks,
        run: Path,
        every: int,
    ) -> None:
        self._telling, self._model = telling, model
        self._rounds = RankRounds(ranks)
        self._run, self._every, self._next = run, every, 0
        self._probes: dict[torch.device, dict[str, Probe]] = {}
        self._built: dict[torch.device, dict[str, Any]] = {}
        self._askers: OrderedDict[tuple[torch.device, str], _Asker] = OrderedDict()
        self._asked: deque[_Asked] = deque()
        self._lookups: list[Lookup] = []
        self._looked_up = 0

    def step_ended(self, step: int) -> None:
        if step >= self._next:
            self._next = step - step % self._every + self._every
            self._ask_all(step)
        if self._asked or self._lookups:
            self._judge(wait=False)
        if alerts := self._rounds.alerts():
            self._telling.report(alerts)

    def close(self) -> None:
        self._judge(wait=True)
        if alerts := self._rounds.close():
            self._telling.report(alerts)

    def _ask_all(self, step: int) -> None:
        askers = [
            self._asker(device, dtype)
            for device in self._devices()
            for dtype in self._probes_of(device)
        ]
        self._rounds.begins(step, len(askers))
        for asker in askers:
            self._ask(step, asker)

    def _devices(self) -> list[torch.device]:
        found = dict.fromkeys(parameter.device for parameter in self._model.parameters())
        return [device for device in found if device.type in ("cpu", "cuda")]

    def _probes_of(self, device: torch.device) -> dict[str, Probe]:
        if device not in self._probes:
            self._built[device] = built(device)
            self._probes[device] = probes_of(device)
        return self._probes[device]

    def _asker(self, device: torch.device, dtype: str) -> _Asker:
        environment = self._built[device] | in_force(device) | {"block": dtype}
        key = key_of(environment)
        found = self._askers.get((device, key))
        if found is None:
            probe = self._probes[device][dtype]
            watch = AnswerWatch(f"{word_for(device)} in {dtype}", probe.known)
            found = self._askers[device, key] = _Asker(device, probe, key, environment, watch)
            if len(self._askers) > _ASKERS:
                self._askers.popitem(last=False)
        return found

    def _ask(self, step: int, asker: _Asker) -> None:
        if len(self._asked) < _WAITING:
            answer = asker.probe.ask()
            self._asked.append(_Asked(step, asker, HostCopy(answer.rows), HostCopy(answer.numbers)))

    def _judge(self, *, wait: bool) -> None:
        """Take in the answers that have arrived, and what was looked up; all when waiting."""
        while self._asked and (wait or self._asked[0].ready()):
            self._take(self._asked.popleft())
        within = _LOOKUP_SECONDS if wait else 0.0
        for lookup in [lookup for lookup in self._lookups if lookup.done(within=within)]:
            self._lookups.remove(lookup)
            self._telling.event(lookup.step, "known answer", lookup.detail())
            if alerts := lookup.alerts():
                self._telling.report(alerts)

    def _take(self, asked: _Asked) -> None:
        step, asker = asked.step, asked.asker
        answer = Answer(asked.rows.array(), asked.numbers.array())
        self._rounds.answered(step, asker.key, answer.hash)
        alerts, again = asker.watch.take(step, answer)
        for _ in range(again):
            self._ask(step, asker)
        if alerts:
            self._telling.report(alerts)
        new = asker.watch.reference is not None and not asker.looked_up
        if new and self._looked_up < _ASKERS:
            asker.looked_up = True
            self._looked_up += 1
            self._look_up(step, asker)

    def _look_up(self, step: int, asker: _Asker) -> None:
        answer = asker.watch.reference
        assert answer is not None
        mine = RecordedAnswer(
            answer, asker.environment, socket.gethostname(), device_id(asker.device), step
        )
        self._lookups.append(
            Lookup(self._run, asker.key, asker.watch.where, mine, asker.probe.known)
        )
