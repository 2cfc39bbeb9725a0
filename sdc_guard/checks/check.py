"""What a check is told of the training, and how it tells what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..detect.alert import Alert
from ..detect.step_signals import StepSignals
from ..safely import Safely
from ..store.health import Health


class Telling(Protocol):
    """Takes what checks find, in the thread of the training."""

    def report(self, alerts: list[Alert]) -> None:
        """Store alerts, and let the guard's policy follow from them."""

    def event(self, step: int, kind: str, detail: str) -> None:
        """Store an event."""


class Check:
    """A comparison at a cadence of its own. Each method is called in the thread of the training.

    What a method raises is counted in the guard's health, and neither the training nor another
    check notices.
    """

    def observed(self, step: int, loss: Any, batch: Any) -> None:
        """The script gave the loss and the batch of a micro-batch of step `step`."""

    def backward_ended(self, step: int) -> None:
        """A backward ended; gradients are reduced, and not yet clipped."""

    def measured(
        self,
        steps: Sequence[int],
        layers: NDArray[np.int32],
        numel: NDArray[np.int64],
        signals: StepSignals,
    ) -> None:
        """What this rank's gradients of these steps amount to; steps that a scaler skipped are
        left out.

        Args:
            steps: their numbers, rising from call to call.
            layers: the layers' numbers, int32 (layers,).
            numel: elements of each whole tensor.
            signals: shape (steps, layers).
        """

    def alerted(self, alert: Alert) -> None:
        """Any detector of this guard raised an alert; it may be about an earlier step."""

    def judged(self, step: int) -> None:
        """Step `step` is about to be applied, and what waits for no device was judged."""

    def step_begins(self, step: int) -> None:
        """The optimizer is about to apply step `step`; its gradients may be clipped by now."""

    def step_ended(self, step: int) -> None:
        """The optimizer has applied step `step`, or it was left out."""

    def state_written(self) -> None:
        """The script has written to parameters or optimizer state on purpose."""

    def layers_changed(self) -> None:
        """Parameters were added, replaced or unfrozen."""

    def close(self) -> None:
        """Nothing more will come: let go of hooks and threads."""


class Checks(Check):
    """Several checks as one.

    Args:
        health: counts what goes wrong in one of them.
    """

    def __init__(self, checks: Iterable[Check], health: Health) -> None:
        self._checks, self._health = list(checks), health
        self._observing = self._those_with("observed")
        self._at_backwards = self._those_with("backward_ended")
        self._at_beginnings = self._those_with("step_begins")
        self._judging = self._those_with("judged")
        self._at_ends = self._those_with("step_ended")

    def _those_with(self, method: str) -> list[Check]:
        """The checks that are told something by a method: most do nothing at most moments."""
        return [c for c in self._checks if getattr(type(c), method) is not getattr(Check, method)]

    def observed(self, step: int, loss: Any, batch: Any) -> None:
        if self._observing:
            self._tell(lambda check: check.observed(step, loss, batch))

    def backward_ended(self, step: int) -> None:
        if self._at_backwards:
            self._tell(lambda check: check.backward_ended(step))

    def step_begins(self, step: int) -> None:
        if self._at_beginnings:
            self._tell(lambda check: check.step_begins(step))

    def measured(
        self,
        steps: Sequence[int],
        layers: NDArray[np.int32],
        numel: NDArray[np.int64],
        signals: StepSignals,
    ) -> None:
        self._tell(lambda check: check.measured(steps, layers, numel, signals))

    def alerted(self, alert: Alert) -> None:
        self._tell(lambda check: check.alerted(alert))

    def judged(self, step: int) -> None:
        if self._judging:
            self._tell(lambda check: check.judged(step))

    def step_ended(self, step: int) -> None:
        for check in self._at_ends:
            with Safely(self._health, type(check).__name__):
                check.step_ended(step)

    def state_written(self) -> None:
        self._tell(lambda check: check.state_written())

    def layers_changed(self) -> None:
        self._tell(lambda check: check.layers_changed())

    def close(self) -> None:
        self._tell(lambda check: check.close())

    def _tell(self, told: Callable[[Check], None]) -> None:
        for check in self._checks:
            with Safely(self._health, type(check).__name__):
                told(check)
