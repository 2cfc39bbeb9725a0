"""Evidence on its way: judged in its order, when it has arrived and it is time."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable

from .collector import Collector
from .detect.alert import Alert
from .evidence import AfterStep, BeforeStep
from .recorder import Recorder

JUDGE_SECONDS = 1.0  # at most so long evidence waits to be judged, unless it is asked for
MOST_PENDING = 64  # pieces of evidence, two a step
_MOST_ROWS = 20_000  # of the table "layers" that are made at once: bounds the memory for it
_TOGETHER = 4  # pieces: a single step's own have to be judged each, some wait for that


class PendingEvidence:
    """What the recorder has not yet seen.

    Args:
        recorder: judges and writes it.
        collector: knows the tensors, and when there is no time to lose.
        leave_out: whether these alerts, or gradients that are not finite, leave out the open step.
    """

    def __init__(
        self,
        recorder: Recorder,
        collector: Collector,
        leave_out: Callable[[list[Alert], bool], bool],
    ) -> None:
        self._recorder, self._collector, self._leave_out = recorder, collector, leave_out
        self._waiting: deque[BeforeStep | AfterStep] = deque()
        self._unkept: deque[BeforeStep | AfterStep] = deque()
        self._judged = 0.0
        self._most = MOST_PENDING

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, evidence: BeforeStep | AfterStep) -> None:
        """Add the newest evidence, and keep what has arrived by now where it is not lost."""
        self._waiting.append(evidence)
        self._unkept.append(evidence)
        while self._unkept and self._unkept[0].ready():
            self._recorder.keep(self._unkept.popleft())

    def judge(self, *, wait: bool) -> None:
        """Hand on what has arrived, in order, if it is time to; all of it when waiting.

        Judging many steps in a row takes a fraction of the time: between the kernels of a
        training Python's own code is out of the processor's caches each time.
        """
        if not (
            wait
            or self._collector.urgent
            or self._collector.digests_all
            or len(self._waiting) >= self._most
            or time.monotonic() - self._judged >= JUDGE_SECONDS
        ):
            return
        self._judge_together(wait=wait)
        while self._waiting and (wait or self._waiting[0].ready()):
            evidence = self._waiting.popleft()
            if isinstance(evidence, AfterStep):
                self._recorder.after_step(evidence)
            else:
                live = self._collector.held
                self._recorder.before_step(evidence, live, self._leave_out)
        if not self._waiting:
            self._unkept.clear()
        self._judged = time.monotonic()

    def _judge_together(self, *, wait: bool) -> None:
        ready = list(itertools.takewhile(lambda piece: wait or piece.ready(), self._waiting))
        at_once = max(_TOGETHER, 2 * _MOST_ROWS // max(self._recorder.layers, 1))
        self._most = min(at_once, MOST_PENDING)
        # what is wrong with one of them is told when they are judged one by one
        with contextlib.suppress(Exception):
            for start in range(0, len(ready), at_once):
                part = ready[start : start + at_once]
                if len(part) < _TOGETHER or not self._recorder.quiet_steps(part):
                    return
                for _ in part:
                    self._waiting.popleft()
