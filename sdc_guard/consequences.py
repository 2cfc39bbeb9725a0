"""What follows from an alert: a record, a warning, a step left out, or the end of the training."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from .detect.alert import Alert
from .errors import TrainingHalted
from .options import Policy
from .ranks import Ranks
from .repeated import Repeated
from .safely import Safely
from .store.health import Health
from .withheld import WithheldGradients

_log = logging.getLogger("sdc_guard")


class Consequences:
    """Does what a guard's policy asks for, on all ranks at once.

    Args:
        policy: see Guard.
        on_alert: the script's own callback.
        optimizers: whose step is left out.
        ranks: that decide together under the policies skip and halt.
        health: counts the alerts, and what goes wrong in the callback and between ranks.
    """

    def __init__(
        self,
        policy: Policy,
        on_alert: Callable[[Alert], None] | None,
        optimizers: list[torch.optim.Optimizer],
        ranks: Ranks,
        health: Health,
    ) -> None:
        self._policy = policy
        self._on_alert = on_alert
        self._optimizers = optimizers
        self._ranks, self._health = ranks, health
        self._withheld = WithheldGradients()
        self._repeated = Repeated()
        self._halting: Alert | None = None
        self._agreed = False
        self.blocking = policy in ("skip", "halt")  # each step waits for its own evidence
        self.other_rank: int | None = None

    def notice(self, alert: Alert) -> None:
        """Take an alert."""
        kind = (alert.detector, alert.severity)
        self._health.alerts[kind] = self._health.alerts.get(kind, 0) + 1
        if self._policy in ("warn", "skip"):
            line = self._repeated.line(alert)
            if line is not None:
                _log.warning("SDC Guard: %s", line)
        if self._policy == "halt" and self._halting is None:
            self._halting = alert
        if self._on_alert is not None:
            with Safely(self._health, "calling on_alert"):
                self._on_alert(alert)

    def decision_is_due(self, *, due: bool) -> None:
        """Whether the next `decide` concerns a step about which the ranks have to agree."""
        self._agreed = not due

    def leave_out(self, alerts: list[Alert], *, broken: bool = False) -> bool:
        """Under the policy skip: whether this step, judged with these alerts, is left out.

        So is one whose gradients are `broken`, not finite: of several such steps only the first
        has an alert, and each of them would spoil all that it is applied to.

        Without gradients the optimizers change nothing. `other_rank` is set where it is left out
        for the alerts of another rank alone.
        """
        if self._policy == "halt":
            return bool(alerts)  # `decide` ends the training before it is applied
        if self._policy != "skip":
            return False
        self._agreed = True
        alerting = bool(alerts) or broken
        rank = self._ranks.rank if alerting else None
        with Safely(self._health, "agreeing with other ranks"):
            rank = self._ranks.alerting(alerting)
        self.other_rank = None if alerting else rank
        if rank is not None:
            self._withheld.take(self._optimizers)
        return rank is not None

    def decide(self, abandon: Callable[[], None]) -> None:
        """End the training under the policy halt, if there is an alert on any rank.

        Args:
            abandon: called before that.

        Raises:
            TrainingHalted: there is.
        """
        if self._policy == "skip" and not self._agreed:
            self.leave_out([])  # recording failed here: the others wait for this rank
        if self._policy != "halt":
            return
        alert, rank = self._halting, None
        with Safely(self._health, "agreeing with other ranks"):
            rank = self._ranks.alerting(alert is not None)
        if alert is None and rank is None:
            return
        self._halting = None
        abandon()
        what = f"rank {rank} has an alert" if alert is None else str(alert)
        raise TrainingHalted(what, next_step="the policy is halt; the step is not applied")

    def step_ended(self) -> None:
        """Give back what was withheld."""
        self._withheld.give_back()
